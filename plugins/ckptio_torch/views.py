"""The elements of a view of a storage, in C order and in bounded memory, whatever its strides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Fetch", "is_contiguous", "reach", "view_chunks"]

Fetch = Callable[[int, int], bytes]
"""Returns ``size`` bytes from byte ``offset`` of a storage."""

_BLOCK = 16 << 20
"""Bytes of a view that are put together at a time."""
_SHORT = 16 << 10
"""Bytes that cost no more to read in one go than a further read would."""
_WASTE = 8
"""How many times the bytes wanted are read at most, to have them in one go."""

_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
"""Types of each size that numpy moves fast and without looking at the bits."""


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether the elements lie one after the other in C order."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return how many elements of the storage lie from the first of the view to its last, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def view_chunks(
    fetch: Fetch,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    itemsize: int,
    max_bytes: int,
) -> Iterator[memoryview]:
    """Yield the bytes of a view that is not empty, whole elements, ``max_bytes`` at a time.

    ``strides`` and ``offset`` count elements of ``itemsize`` bytes.
    """
    step = max(1, max_bytes // itemsize) * itemsize
    for block_shape, start in _blocks(shape, strides, offset, max(1, _BLOCK // itemsize)):
        inner = strides[len(strides) - len(block_shape) :]
        block = np.empty(block_shape, _WORDS[itemsize])
        _fill(block, fetch, inner, start)
        data = block.reshape(-1).view(np.uint8).data
        for first in range(0, len(data), step):
            yield data[first : first + step]


def _blocks(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, most: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Cut a view into blocks of at most ``most`` elements; yield the shape and offset of each, in order."""
    split = len(shape)
    while split and math.prod(shape[split - 1 :]) <= most:
        split -= 1
    if split == 0:
        yield shape, offset
        return
    inner = shape[split:]
    rows = max(1, most // math.prod(inner))
    axis = split - 1
    for index in np.ndindex(shape[:axis]):
        start = offset + sum(i * stride for i, stride in zip(index, strides, strict=False))
        for row in range(0, shape[axis], rows):
            yield (min(rows, shape[axis] - row), *inner), start + row * strides[axis]


def _fill(block: npt.NDArray[Any], fetch: Fetch, strides: tuple[int, ...], offset: int) -> None:
    """Fill ``block`` with the elements of the view at ``offset``; read in one go what lies together."""
    itemsize = block.dtype.itemsize
    stack = [(block, offset)]
    while stack:
        part, start = stack.pop()
        span = reach(part.shape, strides) * itemsize
        distinct = math.prod(n for n, s in zip(part.shape, strides, strict=True) if s) * itemsize
        if span <= _SHORT or (span <= _BLOCK and span <= _WASTE * distinct):
            data = fetch(start * itemsize, span)
            steps = tuple(stride * itemsize for stride in strides)
            part[...] = np.ndarray(part.shape, part.dtype, data, 0, steps)
            continue
        axis = max(range(part.ndim), key=lambda axis: (part.shape[axis] > 1) * strides[axis])
        half = part.shape[axis] // 2
        before = (slice(None),) * axis
        stack.append((part[(*before, slice(None, half))], start))
        stack.append((part[(*before, slice(half, None))], start + half * strides[axis]))
