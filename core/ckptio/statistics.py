"""Least, greatest and mean value of a tensor, and how many NaNs and infinities it has; in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.checkpoint import Checkpoint
from ckptio.elements import elements, widen

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Statistics", "statistics"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the finite elements of a tensor amount to, and the counts of the others.

    ``min``, ``max`` and ``mean`` are None when no element is finite. Those of integers and bools are
    exact (a bool is 0 or 1), and those of complex numbers are of their magnitudes.
    """

    min: float | int | None
    max: float | int | None
    mean: float | None
    nan: int
    inf: int


def statistics(
    checkpoint: Checkpoint, name: str, *, on_bytes: Callable[[int], None] | None = None
) -> Statistics:
    """Read a tensor once, in chunks; ``on_bytes`` is called with the size of each."""
    integers = checkpoint.specs[checkpoint.canonical(name)].dtype.numpy.kind in "bui"
    tally: _Integers | _Floats = _Integers() if integers else _Floats()
    for array in elements(checkpoint, name):
        tally.add(widen(array))
        if on_bytes is not None:
            on_bytes(array.nbytes)
    return tally.result()


class _Integers:
    def __init__(self) -> None:
        self._min = self._max = 0
        self._sum = self._count = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        least, greatest = int(values.min()), int(values.max())
        self._min = min(self._min, least) if self._count else least
        self._max = max(self._max, greatest) if self._count else greatest
        # Summed in halves: the sum of whole 64-bit integers would wrap around.
        high, low = values >> 32, values & 0xFFFFFFFF
        self._sum += (int(high.sum()) << 32) + int(low.sum())
        self._count += values.size

    def result(self) -> Statistics:
        if not self._count:
            return Statistics(None, None, None, 0, 0)
        return Statistics(self._min, self._max, self._sum / self._count, 0, 0)


class _Floats:
    def __init__(self) -> None:
        self._min, self._max = math.inf, -math.inf
        self._mean, self._count = 0.0, 0
        self._nan = self._inf = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        if values.dtype.kind == "c":
            # A complex number with an infinite part and a NaN counts as infinite, as its magnitude is.
            nan -= int((np.isnan(values) & np.isinf(values)).sum())
        if nan or inf:
            values = values[np.isfinite(values)]
        self._nan, self._inf = self._nan + nan, self._inf + inf
        if values.size:
            self._add_finite(np.abs(values) if values.dtype.kind == "c" else values)

    def _add_finite(self, values: npt.NDArray[Any]) -> None:
        self._min = min(self._min, float(values.min()))
        self._max = max(self._max, float(values.max()))
        with np.errstate(over="ignore"):
            mean = float(values.mean())
        if not np.isfinite(mean):
            mean = float((values / values.size).sum())
        self._count += values.size
        # Weighted means, not a sum: the sum of large finite values would overflow.
        weight = values.size / self._count
        self._mean = self._mean * (1 - weight) + mean * weight

    def result(self) -> Statistics:
        if not self._count:
            return Statistics(None, None, None, self._nan, self._inf)
        return Statistics(self._min, self._max, self._mean, self._nan, self._inf)
