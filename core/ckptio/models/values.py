"""Comparing and making the values of tensors, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.checkpoint import Checkpoint
from ckptio.dtypes import DType
from ckptio.elements import same_bytes, side_by_side

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["difference", "tril_chunks", "tril_fault"]

_COMPARE_BYTES = 1 << 20


def tril_chunks(size: int, dtype: DType, max_bytes: int) -> Iterator[memoryview]:
    """Yield the bytes of a ``size`` by ``size`` matrix of ones on and below the diagonal, zeros above.

    No more than a chunk is made at once, or one row where that is longer.
    """
    step = max(1, min(max_bytes, _COMPARE_BYTES) // dtype.itemsize)
    rows = max(1, step // max(1, size))
    columns = np.arange(size)
    for start in range(0, size, rows):
        block = columns <= np.arange(start, min(start + rows, size))[:, None]
        flat = block.astype(dtype.numpy).reshape(-1)
        for first in range(0, flat.size, step):
            yield flat[first : first + step].view(np.uint8).data


def tril_fault(checkpoint: Checkpoint, name: str) -> str | None:
    """Return where a stored mask of shape (1, 1, T, T) is not tril(1), or None when it is."""
    spec = checkpoint.specs[name]
    size = spec.shape[-1]
    done = 0
    stored = checkpoint.chunks(name, _COMPARE_BYTES)
    for found, wanted in side_by_side(stored, tril_chunks(size, spec.dtype, _COMPARE_BYTES)):
        one, other = _array(found, spec.dtype), _array(wanted, spec.dtype)
        wrong = np.flatnonzero(one != other)
        if len(wrong):
            row, column = divmod(done + int(wrong[0]), size)
            return (
                f"the mask is not tril(1): element ({row}, {column}) is {float(one[wrong[0]]):g}, "
                f"expected {float(other[wrong[0]]):g}"
            )
        done += len(one)
    return None


def difference(checkpoint: Checkpoint, name: str, other: str) -> str | None:
    """Return how two stored tensors of one dtype and shape differ, or None when their bytes are equal."""
    if same_bytes(checkpoint, name, other):
        return None
    dtype, largest = checkpoint.specs[name].dtype, 0.0
    if not dtype.is_float:
        return "their elements differ"
    pairs = side_by_side(checkpoint.chunks(name, _COMPARE_BYTES), checkpoint.chunks(other, _COMPARE_BYTES))
    for left, right in pairs:
        with np.errstate(all="ignore"):
            gaps = np.abs(_array(left, dtype).astype(np.float64) - _array(right, dtype).astype(np.float64))
        gaps = gaps[~np.isnan(gaps)]
        largest = max(largest, float(gaps.max(initial=0.0)))
    return (
        f"the largest absolute difference is {largest:g}" if largest else "the bits of zeros or NaNs differ"
    )


def _array(chunk: memoryview, dtype: DType) -> npt.NDArray[Any]:
    return np.frombuffer(chunk, dtype.numpy)
