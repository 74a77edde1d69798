"""Quantised blocks: decoded as they are asked for, carried untouched, or made, by the package gguf."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio import Checkpoint, Span, UnsupportedError
from ckptio_gguf.types import GgmlType

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["NEEDED", "Blocks", "has_package", "quantized_chunks", "untouched"]

NEEDED = "pip install 'ckptio[gguf]'"
_WORK = 1 << 20
"""Bytes of floats that are worked on at once: the package makes several arrays of that size."""
_FLOAT = 4


class Blocks(Iterator[memoryview]):
    """The elements of a quantised tensor as f32, decoded while they are iterated over.

    Adapters that leave a tensor's elements alone hand on the very iterator that they are given. So a
    writer that is given one knows that it can copy ``span``, the blocks, instead.
    """

    def __init__(self, type: GgmlType, span: Span, max_bytes: int) -> None:  # noqa: A002
        self.type = type
        self.span = span
        self._decoded = _decode(type, span, max_bytes)

    def __next__(self) -> memoryview:
        return next(self._decoded)


def has_package() -> bool:
    """Return whether the package gguf is installed."""
    return importlib.util.find_spec("gguf") is not None


def untouched(checkpoint: Checkpoint, name: str) -> Blocks | None:
    """Return the blocks that a tensor still is, or None; nothing is read."""
    if checkpoint.spans(name) is not None:
        return None
    chunks = checkpoint.chunks(name)
    return chunks if isinstance(chunks, Blocks) else None


def quantized_chunks(checkpoint: Checkpoint, name: str, kind: GgmlType) -> Iterator[bytes]:
    """Yield an f32 tensor in blocks of ``kind``, some at a time.

    Raises `UnsupportedError` for an element that is not finite: no block could hold it.
    """
    block = kind.block * _FLOAT
    step = max(1, _WORK // block) * block
    for data in _whole(checkpoint.chunks(name, step), block):
        values = np.frombuffer(data, "<f4")
        if not np.isfinite(values).all():
            raise UnsupportedError(f"{name}: has values that are not finite, which {kind.name} cannot hold")
        with np.errstate(all="ignore"):
            yield _quants().quantize(values.reshape(1, -1), _package_type(kind)).tobytes()


def _whole(chunks: Iterable[memoryview], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces that are multiples of ``size``."""
    rest = b""
    for chunk in chunks:
        data = rest + bytes(chunk)
        end = len(data) - len(data) % size
        rest = data[end:]
        if end:
            yield data[:end]


def _decode(kind: GgmlType, span: Span, max_bytes: int) -> Iterator[memoryview]:
    blocks = max(1, min(max_bytes, _WORK) // (kind.block * _FLOAT))
    most = max(_FLOAT, max_bytes - max_bytes % _FLOAT)
    end = span.offset + span.length
    for position in range(span.offset, end, blocks * kind.nbytes):
        data = span.file.read_at(position, min(blocks * kind.nbytes, end - position))
        # One long row: of many short ones the package makes as many calls.
        row = np.frombuffer(data, np.uint8).reshape(1, -1)
        with np.errstate(all="ignore"):
            values: npt.NDArray[Any] = _quants().dequantize(row, _package_type(kind))
        decoded = np.ascontiguousarray(values.reshape(-1), "<f4").view(np.uint8).data
        for first in range(0, len(decoded), most):
            yield decoded[first : first + most]


@functools.cache
def _quants() -> ModuleType:
    """Return the package's module of quantisation, which is imported only here."""
    try:
        import gguf.quants
    except ImportError as error:
        raise UnsupportedError(f"quantised tensors need the package gguf: {NEEDED} ({error})") from None
    return gguf.quants


def _package_type(kind: GgmlType) -> Any:
    from gguf import GGMLQuantizationType

    return GGMLQuantizationType(kind.id)
