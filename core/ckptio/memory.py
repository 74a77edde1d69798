"""A checkpoint over arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.checkpoint import CHUNK_BYTES, TensorSpec
from ckptio.described import DescribedCheckpoint
from ckptio.dtypes import DType

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MemoryCheckpoint"]


class MemoryCheckpoint(DescribedCheckpoint):
    """A checkpoint over arrays in memory, in any strides and byte order; nothing is copied at once.

    Raises `OptionError` for an array whose dtype is outside `DType`.
    """

    def __init__(
        self,
        tensors: Mapping[str, npt.NDArray[Any]],
        *,
        aliases: Mapping[str, str] | None = None,
        leaves: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._arrays = dict(tensors)
        specs = {
            name: TensorSpec(name, DType.of(array.dtype), tuple(array.shape))
            for name, array in self._arrays.items()
        }
        super().__init__(
            specs, aliases=dict(aliases or {}), leaves=dict(leaves or {}), metadata=dict(metadata or {})
        )

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        array, spec = self._arrays[name], self._specs[name]
        step = max(1, max_bytes // spec.dtype.itemsize)
        carrier = spec.dtype.numpy
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        for start in range(0, spec.size, step):
            piece = np.ascontiguousarray(flat[start : start + step], carrier)
            yield piece.view(np.uint8).data
