"""The values of tensors, a few at a time and side by side, in types that hold each of them exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ckptio.checkpoint import Checkpoint

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ELEMENTS", "bits", "elements", "same_bytes", "side_by_side", "widen"]

_Piece = TypeVar("_Piece", memoryview, "npt.NDArray[Any]")

ELEMENTS = 1 << 18
"""Elements at a time: even with a dozen intermediate results of eight bytes each, some 30 MB."""
_COMPARED_BYTES = 1 << 17


def elements(checkpoint: Checkpoint, name: str) -> Iterator[npt.NDArray[Any]]:
    """Yield the elements of a tensor (or alias) in C order: 1-D read-only arrays of its true dtype."""
    spec = checkpoint.specs[checkpoint.canonical(name)]
    for chunk in checkpoint.chunks(spec.name, ELEMENTS * spec.dtype.itemsize):
        if len(chunk):
            yield np.frombuffer(chunk, spec.dtype.numpy)


def widen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the same values as float64, complex128, uint64 (from uint64 only) or int64."""
    kind = array.dtype.kind
    if kind == "c":
        return array.astype(np.complex128)
    if kind in "bui":
        return array.astype(np.uint64 if array.dtype == np.uint64 else np.int64)
    # A signalling NaN must not warn.
    with np.errstate(invalid="ignore"):
        return array.astype(np.float64)


def bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the bits of each element: shape (elements, words), with words of up to eight bytes."""
    word = min(array.itemsize, 8)
    return array.view(f"<u{word}").reshape(-1, array.itemsize // word)


def side_by_side(one: Iterator[_Piece], other: Iterator[_Piece]) -> Iterator[tuple[_Piece, _Piece]]:
    """Pair two streams of equal length piece by piece: their cuts may lie in different places."""
    a, b = next(one, None), next(other, None)
    while a is not None and b is not None:
        count = min(len(a), len(b))
        if count:
            yield a[:count], b[:count]
        a = a[count:] if len(a) > count else next(one, None)
        b = b[count:] if len(b) > count else next(other, None)


def same_bytes(checkpoint: Checkpoint, name: str, other: str) -> bool:
    """Return whether two stored tensors of one size have the same bytes; reads up to the first difference."""
    # Buffers of this size are used again by the allocator, which makes the reading several times faster.
    streams = (checkpoint.chunks(each, _COMPARED_BYTES) for each in (name, other))
    return all(_equal(a, b) for a, b in side_by_side(*streams))


def _equal(a: memoryview, b: memoryview) -> bool:
    word = np.uint8 if len(a) % 8 else np.uint64
    return np.array_equal(np.frombuffer(a, word), np.frombuffer(b, word))
