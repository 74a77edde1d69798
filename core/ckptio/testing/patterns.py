"""Tensors whose bits catch what a sloppy reader or writer does to them, made by integer arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ckptio.dtypes import DType
from ckptio.memory import MemoryCheckpoint
from ckptio.models import architecture

__all__ = ["bit_patterns", "small_checkpoint", "tiny_gpt2"]

_EXPONENT_BITS = {DType.F16: 5, DType.BF16: 8, DType.F32: 8, DType.F64: 11}
_PARTS = {DType.C64: DType.F32, DType.C128: DType.F64}
_RANDOM = 4096


def bit_patterns(dtype: DType, count: int | None = None, start: int = 0) -> npt.NDArray[Any]:
    """Return a 1-D array of telling elements: ``count`` of them from ``start`` on, again and again.

    There are all of them where an element has two bytes or fewer; else zeros and infinities of both
    signs, subnormals, NaNs quiet and signalling with payloads, the largest and the smallest, and
    4096 random ones. Without ``count`` each comes once.
    """
    words = _words(_PARTS.get(dtype, dtype))
    if dtype in _PARTS:
        words = np.stack([words, words[::-1]], axis=1)
    if count is not None:
        words = words[(start + np.arange(count)) % len(words)]
    return np.ascontiguousarray(words).reshape(-1).view(dtype.numpy)


def _words(dtype: DType) -> npt.NDArray[Any]:
    unsigned = np.dtype(f"<u{dtype.itemsize}")
    if dtype is DType.BOOL:
        return np.array([1, 0], unsigned)
    width = 8 * dtype.itemsize
    special = np.array(_special(width, _EXPONENT_BITS.get(dtype)), unsigned)
    if dtype.itemsize <= 2:
        return np.concatenate([special, np.setdiff1d(np.arange(1 << width).astype(unsigned), special)])
    random = np.random.default_rng(width).integers(0, 1 << width, _RANDOM, np.uint64, endpoint=False)
    return np.concatenate([special, random.astype(unsigned)])


def _special(width: int, exponent_bits: int | None) -> list[int]:
    sign, ones = 1 << width - 1, (1 << width) - 1
    common = [1, 0, sign, sign | 1, sign - 1, ones]
    if exponent_bits is None:
        return common
    mantissa = width - 1 - exponent_bits
    infinity = ((1 << exponent_bits) - 1) << mantissa
    quiet = 1 << mantissa - 1
    return [
        *(infinity, sign | infinity, infinity - 1, 1 << mantissa, (1 << mantissa) - 1),
        *(infinity | 1, infinity | quiet, sign | infinity | quiet | 5, sign | infinity | 3),
        *common,
    ]


def small_checkpoint(dtype: DType, *, zero_dim: bool, empty: bool) -> MemoryCheckpoint:
    """Return a few small tensors of every kind of shape, the empty ones last, in no sorted order."""
    arrays = {
        "vector": bit_patterns(dtype, 19),
        "cube": bit_patterns(dtype, 24, 19).reshape(2, 3, 4),
        "matrix": bit_patterns(dtype, 6, 43).reshape(3, 2),
    }
    if zero_dim:
        arrays["scalar"] = bit_patterns(dtype, 1, 7).reshape(())
    if empty:
        arrays["no rows"] = bit_patterns(dtype, 0).reshape(0, 3)
        arrays["no elements"] = bit_patterns(dtype, 0)
    return MemoryCheckpoint(arrays)


def tiny_gpt2(dtype: DType) -> MemoryCheckpoint:
    """Return the smallest GPT-2 that any format or layout takes, its output head tied to the embedding."""
    sizes = {"n_layer": 1, "n_embd": 2, "vocab_size": 3, "block_size": 4}
    arrays, aliases, position = {}, {}, 0
    for row in architecture("gpt2").rows:
        shape = row.shape_for(sizes)
        for name in row.names(sizes["n_layer"]):
            if row.shares is not None:
                aliases[name] = row.shares
            elif row.equals is None:
                arrays[name] = bit_patterns(dtype, row.size_for(sizes), position).reshape(shape)
                position += row.size_for(sizes)
    return MemoryCheckpoint(arrays, aliases=aliases, metadata={"config": {**sizes, "n_head": 1}})
