"""The values that flax adds to msgpack, read from their bytes: arrays, chunked arrays, complex numbers.

Each function raises `CorruptCheckpointError` for what is damaged, and `UnsupportedError` for a dtype
that ckptio does not know; an array's elements are skipped, never read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckptio import DType, UnsupportedError, current_limits
from ckptio.limits import shape_problem
from ckptio_msgpack.wire import CHUNKED, DTYPES, SCALAR, Head, Reader, read_head

__all__ = ["Array", "join_chunks", "read_array", "read_complex", "unsupported"]

_LONGEST_DTYPE = 64


@dataclass(frozen=True, slots=True)
class Array:
    """An array in the file: ``pieces`` are (offset, length) in bytes; ``scalar`` marks a numpy scalar."""

    dtype: DType
    shape: tuple[int, ...]
    pieces: tuple[tuple[int, int], ...]
    scalar: bool = False


def read_array(reader: Reader, ext: Head, start: int) -> Array:
    """Read an array up to its elements, where ``reader`` stands afterwards; ``start`` is that of its head."""
    end = reader.offset + ext.value
    if read_head(reader)[:2] != ("list", 3):
        raise reader.error("an array that is not (shape, dtype, bytes)", start)
    sizes, dtype, data = _read_sizes(reader, start), _read_dtype(reader, start), read_head(reader)
    shape = _checked_shape(reader, sizes, dtype, start)
    if data.kind not in ("bin", "str"):
        raise reader.error(f"an array whose elements are a {data.kind} value", start)
    expected = math.prod(shape) * dtype.itemsize
    if data.value != expected:
        raise reader.error(
            f"an array {dtype.long_name}{list(shape)} takes {expected} bytes, but has {data.value}", start
        )
    if reader.offset + expected != end:
        raise reader.error(
            f"an array that ends at byte {reader.offset + expected} in an ext value that ends at {end}", start
        )
    if ext.code == SCALAR and shape:
        raise reader.error(f"a numpy scalar of shape {list(shape)}", start)
    return Array(dtype, shape, ((reader.offset, expected),), ext.code == SCALAR)


def _read_sizes(reader: Reader, start: int) -> list[Any]:
    head = read_head(reader)
    if head.kind != "list":
        raise reader.error("an array whose shape is not a list", start)
    _check_dimensions(reader, head.value, start)
    sizes = []
    for _ in range(head.value):
        size = read_head(reader)
        if size.kind != "plain":
            raise reader.error(f"an array with a {size.kind} value in its shape", start)
        sizes.append(size.value)
    return sizes


def _check_dimensions(reader: Reader, count: int, start: int) -> None:
    limit = current_limits().dimensions
    if count > limit:
        raise reader.error(f"an array of {count} dimensions; no more than {limit} are read", start)


def _checked_shape(reader: Reader, sizes: list[Any], dtype: DType, start: int) -> tuple[int, ...]:
    if not all(type(size) is int for size in sizes):
        raise reader.error("an array whose shape is not made of integers", start)
    problem = shape_problem(sizes, dtype.itemsize)
    if problem:
        raise reader.error(f"an array that cannot be: {problem}", start)
    return tuple(sizes)


def _read_dtype(reader: Reader, start: int) -> DType:
    head = read_head(reader)
    if head.kind not in ("str", "bin") or head.value > _LONGEST_DTYPE:
        raise reader.error("an array whose dtype is not a name", start)
    name = reader.take(head.value, "the dtype of an array").decode("utf-8", "backslashreplace")
    if name not in DTYPES:
        raise unsupported(reader, f"an array of dtype {name!r}, which ckptio does not know", start)
    return DTYPES[name]


def read_complex(reader: Reader, ext: Head, start: int) -> complex:
    """Read the payload of a complex number."""
    end = reader.offset + ext.value
    if read_head(reader)[:2] == ("list", 2):
        parts = [head.value for head in (read_head(reader), read_head(reader)) if head.kind == "plain"]
        if reader.offset == end and [type(part) in (int, float) for part in parts] == [True, True]:
            return complex(*parts)
    raise reader.error("a complex number that is not a pair of numbers", start)


def join_chunks(reader: Reader, items: Mapping[str, Any], start: int) -> Array:
    """Return the one array that the map of a chunked array stands for."""
    sizes, chunks = _in_order(items.get("shape")), _in_order(items.get("chunks"))
    if items.keys() != {CHUNKED, "shape", "chunks"} or sizes is None or not chunks:
        raise reader.error("a chunked array that is not a shape and its chunks", start)
    _check_dimensions(reader, len(sizes), start)
    kinds = {each.dtype if isinstance(each, Array) and len(each.shape) == 1 else None for each in chunks}
    if None in kinds or len(kinds) > 1:
        raise reader.error("a chunked array whose chunks are not 1-D arrays of one dtype", start)
    shape = _checked_shape(reader, sizes, chunks[0].dtype, start)
    if sum(chunk.shape[0] for chunk in chunks) != math.prod(shape):
        raise reader.error(f"a chunked array whose chunks do not add up to its shape {list(shape)}", start)
    return Array(chunks[0].dtype, shape, tuple(piece for chunk in chunks for piece in chunk.pieces))


def _in_order(items: Any) -> list[Any] | None:
    """Return the values of ``{"0": …, "1": …}`` in that order, or None for anything else."""
    if type(items) is not dict or items.keys() != {str(index) for index in range(len(items))}:
        return None
    return [items[str(index)] for index in range(len(items))]


def unsupported(reader: Reader, what: str, offset: int) -> UnsupportedError:
    """Return the error for valid bytes that are not read; the reader words where they are."""
    return UnsupportedError(str(reader.error(what, offset)))
