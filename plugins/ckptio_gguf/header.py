"""The header of a GGUF file, parsed within bounds and packed; the package describes the bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ckptio
from ckptio import DType, TensorSpec
from ckptio.limits import shape_problem
from ckptio_gguf.file_type import contradicted, mostly
from ckptio_gguf.notes import OWN, Said, note_of, pack_metadata, read_metadata, short_key
from ckptio_gguf.types import BY_ID, GgmlType
from ckptio_gguf.values import pack_string, read_string

__all__ = ["MAGIC", "Header", "Stored", "pack_header", "padding", "read_header", "with_notes"]

MAGIC = b"GGUF"
_VERSION = 3
_READ = (2, _VERSION)
_COUNTS = struct.Struct("<QQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_LEAST = 24
"""Bytes of the smallest description of a tensor: of its name, dimensions, type and offset."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as the file has it; the dtype of ``spec`` is f32 for a quantised one."""

    spec: TensorSpec
    type: GgmlType

    @property
    def quantized(self) -> bool:
        return self.type.dtype is None

    @property
    def nbytes(self) -> int:
        """The bytes in the file."""
        return self.type.size_of(self.spec.size)


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors in file order, where in the file each begins, the metadata, and what is said of a set."""

    tensors: dict[str, Stored]
    offsets: dict[str, int]
    metadata: dict[str, Any]
    said: Said


def padding(offset: int, alignment: int) -> int:
    """Return the bytes from ``offset`` to the next multiple of ``alignment``."""
    return -offset % alignment


def pack_header(tensors: Iterable[Stored], metadata: Mapping[str, Any], alignment: int, say: bool) -> bytes:
    """Return all bytes before the data; ``say`` is whether the alignment stands among the metadata."""
    infos, offset, count = [], 0, 0
    for each in tensors:
        shape = each.spec.shape
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos.append(pack_string(each.spec.name) + dims + _U32.pack(each.type.id) + _U64.pack(offset))
        offset += each.nbytes + padding(each.nbytes, alignment)
        count += 1
    values, data = pack_metadata(metadata, alignment if say else None)
    head = MAGIC + _U32.pack(_VERSION) + _COUNTS.pack(count, values) + data + b"".join(infos)
    return head + bytes(padding(len(head), alignment))


def read_header(file: ckptio.SourceFile) -> Header:
    """Return the header of a file, checked against its size to the last byte.

    Raises `CorruptCheckpointError` with the offset of what is wrong, and `UnsupportedError` for a
    version, byte order or element type that is not known.
    """
    cursor = ckptio.Cursor(file)
    magic = cursor.take(len(MAGIC), "the magic")
    if magic != MAGIC:
        raise cursor.error(f"expected {MAGIC!r}, found {magic!r}: not a GGUF file", 0)
    (version,) = cursor.unpack(_U32, "the version")
    if version not in _READ:
        # A small number in the other byte order has nothing in its lower half.
        what = "big-endian" if version and not version & 0xFFFF else f"version {version}"
        raise ckptio.UnsupportedError(
            f"{file.path}: a GGUF file of {what}; read are the versions 2 and 3, little-endian"
        )
    count, values = cursor.unpack(_COUNTS, "the numbers of tensors and metadata values")
    metadata, alignment, said = read_metadata(cursor, values)
    tensors, offsets = _read_tensors(cursor, count, alignment)
    return Header(tensors, offsets, metadata, said)


def with_notes(metadata: Mapping[str, Any], tensors: Mapping[str, Stored]) -> dict[str, Any]:
    """Return the metadata with the reader's note on what the tensors of a file, or of a set, are."""
    noted: dict[str, Any] = {}
    quantized = {name: each.type.name for name, each in tensors.items() if each.quantized}
    if quantized:
        noted["quantized"] = quantized
    kind = mostly((each.spec, each.type) for each in tensors.values())
    if kind is not None and contradicted(metadata, kind):
        noted["mostly"] = kind.name
    return {**metadata, OWN: {**note_of(metadata), **noted}} if noted else dict(metadata)


def _read_tensors(
    cursor: ckptio.Cursor, count: int, alignment: int
) -> tuple[dict[str, Stored], dict[str, int]]:
    limit = ckptio.current_limits().tensors
    if count * _LEAST > cursor.left:
        raise cursor.error(f"{count} tensors cannot be in the {cursor.left} bytes that follow")
    if count > limit:
        raise cursor.error(f"{count} tensors are more than the limit of {limit}")
    tensors: dict[str, Stored] = {}
    offsets: dict[str, int] = {}
    end = 0
    for _ in range(count):
        begin = cursor.offset
        each, offset = _read_tensor(cursor)
        name = each.spec.name
        if name in tensors:
            raise cursor.error(f"two tensors are named {short_key(name)}", begin)
        end += padding(end, alignment)
        if offset != end:
            what = f"tensor {short_key(name)} begins at {offset} of the data, where {end} is expected"
            raise cursor.error(what, begin)
        tensors[name], offsets[name] = each, offset
        end += each.nbytes
    start = cursor.offset + (padding(cursor.offset, alignment) if count else 0)
    _check_end(cursor, start + end, alignment, tensors)
    return tensors, {name: start + offset for name, offset in offsets.items()}


def _check_end(cursor: ckptio.Cursor, end: int, alignment: int, tensors: Mapping[str, Stored]) -> None:
    """Refuse a file that ends inside a tensor, or goes on after the last by more than its padding."""
    over = cursor.file.size - end
    if over < 0:
        raise cursor.error(f"the file ends inside its {len(tensors)} tensors: {-over} bytes are missing", end)
    if over > padding(end, alignment):
        raise cursor.error(f"{over} bytes follow the last of {len(tensors)} tensors; expected padding", end)


def _read_tensor(cursor: ckptio.Cursor) -> tuple[Stored, int]:
    """Return a tensor, and where in the data it begins."""
    begin = cursor.offset
    name = read_string(cursor, "the name of a tensor")
    what = f"tensor {short_key(name)}"
    (dimensions,) = cursor.unpack(_U32, what)
    limit = ckptio.current_limits().dimensions
    if dimensions > limit:
        raise cursor.error(f"{what}: {dimensions} dimensions are more than the limit of {limit}", begin)
    shape = tuple(reversed(cursor.unpack(struct.Struct(f"<{dimensions}Q"), what)))
    (number,) = cursor.unpack(_U32, what)
    (offset,) = cursor.unpack(_U64, what)
    kind = BY_ID.get(number)
    if kind is None:
        raise ckptio.UnsupportedError(
            f"{cursor.file.path}: {what} is of ggml's type {number}, which is unknown"
        )
    dtype = kind.dtype or DType.F32
    problem = shape_problem(shape, dtype.itemsize) or kind.row_problem(shape)
    if problem:
        raise cursor.error(f"{what}: {problem}", begin)
    return Stored(TensorSpec(name, dtype, shape), kind), offset
