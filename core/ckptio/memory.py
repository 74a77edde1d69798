"""A checkpoint over arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.checkpoint import CHUNK_BYTES, Checkpoint, TensorSpec
from ckptio.dtypes import DType

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["MemoryCheckpoint"]


class MemoryCheckpoint(Checkpoint):
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
        self._specs = {
            name: TensorSpec(name, DType.of(array.dtype), tuple(array.shape))
            for name, array in self._arrays.items()
        }
        self._aliases = dict(aliases or {})
        self._leaves = dict(leaves or {})
        self._metadata = dict(metadata or {})

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return self._specs

    @property
    def aliases(self) -> Mapping[str, str]:
        return self._aliases

    @property
    def leaves(self) -> Mapping[str, Any]:
        return self._leaves

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._metadata

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        array, spec = self._arrays[name], self._specs[name]
        step = max(1, max_bytes // spec.dtype.itemsize)
        carrier = spec.dtype.numpy
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        for start in range(0, spec.size, step):
            piece = np.ascontiguousarray(flat[start : start + step], carrier)
            yield piece.view(np.uint8).data
