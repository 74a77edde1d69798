"""The two orders in which programs keep the rows of rotary attention heads, and the way between them.

Rotary embedding turns pairs of rows of a head. Meta's files, llm.c and InfiniTrain have the two of a pair
side by side (*pairs*); transformers has all first ones before all second ones (*halves*). Source:
``permute`` in transformers' ``convert_llama_weights_to_hf.py``, and ``unpermute`` in llm.c.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.adapters import Adapter
from ckptio.checkpoint import CHUNK_BYTES, Checkpoint, Span

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Rotary"]


class Rotary(Adapter):
    """Some tensors with the rows of each head brought from pairs to halves, or back.

    ``head_rows`` has, by name, the rows of a head: an even number that divides those of the tensor. A
    head, or a chunk where that is more, is in memory at a time.
    """

    def __init__(self, base: Checkpoint, head_rows: Mapping[str, int], *, to_halves: bool) -> None:
        super().__init__(base)
        for name, rows in head_rows.items():
            shape = base.specs[name].shape
            if rows < 2 or rows % 2 or shape[0] % rows:
                raise ValueError(f"{name}: no heads of {rows} rows in shape {shape}")
        self._head_rows = head_rows
        self._to_halves = to_halves

    def spans(self, name: str) -> Sequence[Span] | None:
        return None if name in self._head_rows else self.base.spans(name)

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        if name not in self._head_rows:
            yield from self.base.chunks(name, max_bytes)
            return
        spec, rows = self.base.specs[name], self._head_rows[name]
        row = math.prod(spec.shape[1:]) * spec.dtype.itemsize
        step = max(1, max_bytes // spec.dtype.itemsize) * spec.dtype.itemsize
        for heads in _blocks(self.base.chunks(name, max_bytes), rows * row, max_bytes, spec.nbytes):
            halves = (-1, rows // 2, 2, row) if self._to_halves else (-1, 2, rows // 2, row)
            turned = np.ascontiguousarray(heads.reshape(halves).swapaxes(1, 2)).reshape(-1)
            for first in range(0, turned.size, step):
                yield turned[first : first + step].data


def _blocks(
    chunks: Iterator[memoryview], unit: int, max_bytes: int, total: int
) -> Iterator[npt.NDArray[Any]]:
    """Yield the bytes of ``chunks`` again, cut at multiples of ``unit``."""
    block = np.empty(min(total, max(1, max_bytes // max(1, unit)) * unit), np.uint8)
    filled = 0
    for chunk in chunks:
        data = np.frombuffer(chunk, np.uint8)
        while data.size:
            taken = data[: block.size - filled]
            block[filled : filled + taken.size] = taken
            filled += taken.size
            data = data[taken.size :]
            if filled == block.size:
                yield block
                filled = 0
    if filled:
        yield block[:filled]
