"""How far two tensors of one shape are apart, element by element, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.checkpoint import Checkpoint
from ckptio.elements import bits, elements, side_by_side, widen

if TYPE_CHECKING:
    import numpy.typing as npt

    _Array = npt.NDArray[Any]

__all__ = ["Distance", "Tolerance", "measure"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Finite values a and b are equal when ``|a - b| <= atol + rtol * max(|a|, |b|)``."""

    atol: float = 0.0
    rtol: float = 0.0


@dataclass(frozen=True, slots=True)
class Distance:
    """Of ``size`` elements, how many differ, and by how much at most.

    ``max_abs`` is the largest |a - b| (exact between integers of one signedness), ``max_rel`` the
    largest |a - b| / max(|a|, |b|), from 0 to 2; an infinity is infinitely far, by both, from whatever
    else. ``nan`` counts the differing elements with a NaN, which have no distance.
    """

    size: int
    differing: int = 0
    nan: int = 0
    max_abs: float | int = 0
    max_rel: float = 0.0


def measure(
    one: Checkpoint, name: str, other: Checkpoint, its_name: str, tolerance: Tolerance | None = None
) -> Distance:
    """Compare two tensors whose shapes are equal.

    Without a tolerance, elements of one dtype are equal when their bits are, and those of different
    dtypes when their values are (a NaN then equals a NaN). Between dtypes, integers beyond 2**53 are
    compared as float64.
    """
    size = one.specs[one.canonical(name)].size
    differing = nan = 0
    max_abs: float | int = 0
    max_rel = 0.0
    for a, b in side_by_side(elements(one, name), elements(other, its_name)):
        same_dtype = a.dtype == b.dtype
        if same_dtype and np.array_equal(bits(a), bits(b)):
            continue
        wide_a, wide_b = _common(widen(a), widen(b))
        if tolerance is None and same_dtype:
            differ = (bits(a) != bits(b)).any(axis=1)
        else:
            differ = ~_close(wide_a, wide_b, tolerance or Tolerance())
        if differ.any():
            gaps, ratios, without = _gaps(wide_a[differ], wide_b[differ])
            differing += int(differ.sum())
            nan += without
            if gaps.size:
                max_abs = max(max_abs, gaps.max().item())
                max_rel = max(max_rel, ratios.max().item())
    return Distance(size, differing, nan, max_abs, max_rel)


def _common(a: _Array, b: _Array) -> tuple[_Array, _Array]:
    """Bring two widened arrays to one dtype."""
    if a.dtype == b.dtype:
        return a, b
    kind = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
    return a.astype(kind), b.astype(kind)


def _close(a: _Array, b: _Array, tolerance: Tolerance) -> _Array:
    with np.errstate(all="ignore"):
        equal: _Array = (a == b) | (np.isnan(a) & np.isnan(b))
        if not tolerance.atol and not tolerance.rtol:
            return equal
        allowed = tolerance.atol + tolerance.rtol * _magnitudes(a, b)
        finite = np.isfinite(a) & np.isfinite(b)
        close: _Array = equal | (finite & (_absolute(a, b) <= allowed))
    return close


def _gaps(a: _Array, b: _Array) -> tuple[_Array, _Array, int]:
    """Return |a - b| and its ratio to the larger magnitude, both without NaNs, and how many have one."""
    ordered = ~(np.isnan(a) | np.isnan(b))
    a, b = a[ordered], b[ordered]
    with np.errstate(all="ignore"):
        gaps, scale = _absolute(a, b), _magnitudes(a, b)
        ratios = np.where(scale > 0, gaps / scale, 0.0)
    ratios[np.isinf(scale) & (gaps > 0)] = np.inf
    return gaps, ratios, int((~ordered).sum())


def _absolute(a: _Array, b: _Array) -> _Array:
    if a.dtype.kind in "iu":
        # As unsigned numbers the difference cannot overflow.
        return np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)
    gaps: _Array = np.abs(a - b)
    # inf - inf has no value; two equal infinities have no distance.
    gaps[a == b] = 0.0
    return gaps


def _magnitudes(a: _Array, b: _Array) -> _Array:
    if a.dtype.kind in "iu":
        a, b = a.astype(np.float64), b.astype(np.float64)
    larger: _Array = np.maximum(np.abs(a), np.abs(b))
    return larger
