"""The values of a tensor, a few at a time, in types that hold each of them exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.checkpoint import Checkpoint

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ELEMENTS", "bits", "elements", "widen"]

ELEMENTS = 1 << 18
"""Elements at a time: even with a dozen intermediate results of eight bytes each, some 30 MB."""


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
