"""Casts between floating types, on the bytes of a chunk, with the overflows counted.

- Finite values round to the nearest, ties to even, with the same bits as torch. Like torch, float64
  goes to a 16- or 8-bit type by way of float32, which rounds twice.
- A NaN becomes the quiet NaN of its sign bit: its payload is not kept. The f8 kinds whose names end
  in ``uz`` have one NaN, 0x80; coming from them, it is a negative one.
- A finite value that rounds to beyond the target's largest is an overflow, and so is an infinity
  where the target has none. It becomes the infinity of its sign, or NaN where there is none. (torch
  2.13 gives the largest value instead when the target is f8_e4m3fn.)
- -0.0 and subnormals stay what they are, where the target has them.
"""

from __future__ import annotations

import bisect
import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.dtypes import DType
from ckptio.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

    _Array = npt.NDArray[Any]

__all__ = ["Caster", "can_overflow", "check_target", "count_overflow"]

_PIECE = 1 << 16
"""Elements that are worked on at a time: few enough for each step to find the last one's result cached."""


class Caster:
    """Casts chunks of one floating type to another; the bytes are little-endian and in C order.

    Raises `OptionError` for a source that is no float, and as `check_target` does.
    """

    def __init__(self, source: DType, target: DType) -> None:
        self._rule = _rule(source, target)
        self._source = _bits(source)
        self._target = _bits(target)

    def cast(self, data: memoryview) -> tuple[memoryview, int]:
        """Return the elements of ``data`` in the target type, and how many of them overflowed.

        The returned memory is the caller's own: the next call leaves it alone.
        """
        bits = np.frombuffer(data, self._source)
        out = np.empty(bits.size, self._target)
        overflowed = 0
        # A cast that overflows, or meets a signalling NaN, must not warn: both are accounted for here.
        with np.errstate(all="ignore"):
            for piece in _pieces(bits.size):
                overflowed += self._rule.cast(bits[piece], out[piece])
        return out.view(np.uint8).data, overflowed


def check_target(dtype: DType) -> None:
    """Raise `OptionError` when ``dtype`` is not a floating type that values can be cast to."""
    if not dtype.is_float:
        raise OptionError(f"{dtype.value} is no floating type: casts are from float to float")
    if dtype is DType.F8_E8M0FNU:
        raise OptionError(
            f"{dtype.value} holds the scales of other tensors (powers of two), not values to cast to it"
        )


def can_overflow(source: DType, target: DType) -> bool:
    """Return whether any value of ``source`` overflows in ``target``; raises what `Caster` does."""
    return _rule(source, target).overflows


def count_overflow(source: DType, target: DType, data: memoryview) -> int:
    """Return the count that `Caster.cast` would return for ``data``, without making the output.

    Raises what `Caster` does.
    """
    rule = _rule(source, target)
    if not rule.overflows:
        return 0
    bits = np.frombuffer(data, _bits(source))
    return sum(rule.count(bits[piece]) for piece in _pieces(bits.size))


class _Arithmetic:
    """The cast of a 16-, 32- or 64-bit source: IEEE types, whose magnitudes are ordered as their bits are.

    The bits without the sign run from 0 over the finite values to infinity, and beyond it are the NaNs.
    One look at the largest says whether a piece needs anything besides the conversion.
    """

    def __init__(self, source: DType, target: DType) -> None:
        self._source, self._target = source, target
        bits = _bits(source)
        self._signed = np.dtype(f"<i{source.itemsize}")
        self._sign = 1 << (8 * source.itemsize - 1)
        self._infinity = int(np.array(np.inf, source.numpy).view(bits))

        def is_lost(magnitude: int) -> bool:
            value = np.array([magnitude], bits).view(source.numpy)
            return not np.isfinite(_convert(value, target)[0])

        # The magnitudes that overflow, from the first to the last; none where the first is the greater.
        with np.errstate(all="ignore"):
            self._first = bisect.bisect_left(range(self._infinity), True, key=is_lost)
            self._last = self._infinity - _has_infinity(target)
        self.overflows = self._first <= self._last

    def cast(self, bits: _Array, out: _Array) -> int:
        """Fill ``out`` from ``bits``; return the number of overflows."""
        _convert(bits.view(self._source.numpy), self._target, out.view(self._target.numpy))
        largest = self._largest(bits)
        if largest > self._infinity:
            nan = (bits & (self._sign - 1)) > self._infinity
            out[nan] = _quiet_nan(bits[nan] >= self._sign, self._target)
        return self._count_exactly(bits) if self.overflows and largest >= self._first else 0

    def count(self, bits: _Array) -> int:
        """Return the number of overflows."""
        return self._count_exactly(bits) if self._largest(bits) >= self._first else 0

    def _largest(self, bits: _Array) -> int:
        # As signed numbers the largest is that of the positive elements, as unsigned that of the negative.
        return max(int(bits.view(self._signed).max()), int(bits.max()) - self._sign)

    def _count_exactly(self, bits: _Array) -> int:
        magnitudes = bits & (self._sign - 1)
        return int(np.count_nonzero((magnitudes >= self._first) & (magnitudes <= self._last)))


class _Table:
    """The cast of an 8-bit source: what becomes of each of its 256 patterns, and which of them overflow.

    Their NaNs and infinities differ from kind to kind, and a table is faster besides.
    """

    def __init__(self, source: DType, target: DType) -> None:
        with np.errstate(all="ignore"):
            # On the way, ml_dtypes makes every f8 NaN the quiet float32 NaN of its sign.
            values = np.arange(256, dtype=np.uint8).view(source.numpy).astype(np.float32)
            cast = _convert(values, target)
            unbounded = np.isinf(values) & _has_infinity(target)
            self._lost = ~(np.isfinite(cast) | np.isnan(values) | unbounded)
        self._cast = cast.view(_bits(target))
        self.overflows = bool(self._lost.any())

    def cast(self, bits: _Array, out: _Array) -> int:
        """Fill ``out`` from ``bits``; return the number of overflows."""
        # No index is out of range; "clip" spares numpy the copy that it makes in case one were.
        np.take(self._cast, bits, out=out, mode="clip")
        return self.count(bits) if self.overflows else 0

    def count(self, bits: _Array) -> int:
        """Return the number of overflows."""
        return int(np.count_nonzero(np.take(self._lost, bits)))


def _rule(source: DType, target: DType) -> _Arithmetic | _Table:
    if sys.byteorder != "little":
        raise UnsupportedError("tensors can be cast on little-endian machines only")
    check_target(target)
    if not source.is_float:
        raise OptionError(f"{source.value} is no floating type: casts are from float to float")
    return _made_rule(source, target)


@functools.cache
def _made_rule(source: DType, target: DType) -> _Arithmetic | _Table:
    return _Table(source, target) if source.itemsize == 1 else _Arithmetic(source, target)


def _convert(values: _Array, target: DType, out: _Array | None = None) -> _Array:
    """Return ``values`` in the target type (in ``out``): all but NaNs right, those as they happen to come."""
    if out is None:
        out = np.empty(values.shape, target.numpy)
    if target.itemsize < 4:
        values = values.astype(np.float32, copy=False)
    np.copyto(out, values, casting="unsafe")
    return out


def _quiet_nan(negative: npt.NDArray[np.bool_], target: DType) -> _Array:
    """Return the bits of the target's quiet NaN of either sign."""
    both = np.array([np.nan, -np.nan], np.float32).astype(target.numpy).view(_bits(target))
    return both[negative.astype(np.intp)]


def _has_infinity(dtype: DType) -> bool:
    return bool(np.isinf(np.array(np.inf, np.float32).astype(dtype.numpy)))


def _bits(dtype: DType) -> np.dtype[Any]:
    return np.dtype(f"<u{dtype.itemsize}")


def _pieces(size: int) -> Iterator[slice]:
    return (slice(start, start + _PIECE) for start in range(0, size, _PIECE))
