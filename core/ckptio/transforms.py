"""Checkpoints over checkpoints that change tensors: cast, add, transpose.

Each reads nothing until it is asked. What is changed has no spans any more, and is worked on chunk by
chunk; ``ckptio.rows`` has the changes that keep them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.adapters import Adapter
from ckptio.casts import Caster, can_overflow, check_target, count_overflow
from ckptio.checkpoint import CHUNK_BYTES, Checkpoint, Span, TensorSpec
from ckptio.dtypes import DType
from ckptio.errors import Problem

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Added", "Cast", "Transposed"]


class Cast(Adapter):
    """The floating tensors among ``names`` in another floating dtype; all else is left alone.

    ``overflowed`` counts, for each tensor that has been read to its end, the elements that overflowed
    (`ckptio.casts` says what that is).
    """

    def __init__(self, base: Checkpoint, dtype: DType, names: Collection[str] | None = None) -> None:
        super().__init__(base)
        check_target(dtype)
        self.dtype = dtype
        self.cast_names = {
            name
            for name, spec in base.specs.items()
            if spec.dtype.is_float and spec.dtype is not dtype and (names is None or name in names)
        }
        self.overflowed: dict[str, int] = {}
        self._specs = {
            name: dataclasses.replace(spec, dtype=dtype) if name in self.cast_names else spec
            for name, spec in base.specs.items()
        }

    def spans(self, name: str) -> Sequence[Span] | None:
        return None if name in self.cast_names else self.base.spans(name)

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        if name not in self.cast_names:
            yield from self.base.chunks(name, max_bytes)
            return
        source = self.base.specs[name].dtype
        caster = Caster(source, self.dtype)
        widest = max(source.itemsize, self.dtype.itemsize)
        step = max(1, max_bytes // widest) * source.itemsize
        overflowed = 0
        for chunk in self.base.chunks(name, step):
            cast, count = caster.cast(chunk)
            overflowed += count
            yield cast
        self.overflowed[name] = overflowed

    def overflows(self) -> list[Problem]:
        """Return a problem for each tensor that has values which overflow; reads all that may have some."""
        counts: dict[str, int] = {}
        for name in self._specs:
            source = self.base.specs[name].dtype
            if name in self.cast_names and can_overflow(source, self.dtype):
                chunks = self.base.chunks(name)
                counts[name] = sum(count_overflow(source, self.dtype, chunk) for chunk in chunks)
        return self._problems(counts)

    def losses(self) -> tuple[Problem, ...]:
        """Return the same of the tensors that have been read, from what was counted on the way."""
        return tuple(self._problems(self.overflowed))

    def _problems(self, counts: Mapping[str, int]) -> list[Problem]:
        return [
            Problem(
                name,
                f"{count} of {self._specs[name].size} values are beyond the largest of {self.dtype.value}",
                allow="overflow",
            )
            for name, count in counts.items()
            if count
        ]


class Added(Adapter):
    """Further tensors beside the base's: each a spec and a function that yields its chunks.

    ValueError when the base has a tensor or alias of such a name.
    """

    def __init__(
        self,
        base: Checkpoint,
        tensors: Mapping[str, tuple[TensorSpec, Callable[[int], Iterator[memoryview]]]],
    ) -> None:
        super().__init__(base)
        for name in tensors:
            if name in base:
                raise ValueError(f"{name}: there is a tensor of this name already")
        self._tensors = tensors
        self._specs = {**base.specs, **{name: spec for name, (spec, _) in tensors.items()}}

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        added = self._tensors.get(name)
        return added[1](max_bytes) if added else self.base.chunks(name, max_bytes)

    def spans(self, name: str) -> Sequence[Span] | None:
        return None if name in self._tensors else self.base.spans(name)


_TILE = 128
"""Rows and columns that are exchanged at a time: both sides of such a tile stay in a processor's cache."""


class Transposed(Adapter):
    """The 2-D tensors among ``names`` with rows and columns exchanged; one tensor in memory at a time."""

    def __init__(self, base: Checkpoint, names: Collection[str]) -> None:
        super().__init__(base)
        self._names = frozenset(names)
        self._specs = {
            name: dataclasses.replace(spec, shape=_reversed(spec)) if name in self._names else spec
            for name, spec in base.specs.items()
        }

    def spans(self, name: str) -> Sequence[Span] | None:
        return None if name in self._names else self.base.spans(name)

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        if name not in self._names:
            yield from self.base.chunks(name, max_bytes)
            return
        array = self.base.read(name)
        step = max(1, max_bytes // array.itemsize)
        columns = max(1, step // max(1, array.shape[0]))
        for start in range(0, array.shape[1] if array.size else 0, columns):
            block = _transpose(array[:, start : start + columns]).reshape(-1)
            for first in range(0, block.size, step):
                yield block[first : first + step].view(np.uint8).data


def _transpose(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return rows and columns exchanged, in an array of its own.

    It goes tile by tile: numpy alone takes whole columns, and where the length of a row is a power of two,
    all elements of a column want the same few lines of the cache.
    """
    rows, columns = array.shape
    turned = np.empty((columns, rows), array.dtype)
    # Tiles of few columns are longer, so that there are not more of them.
    height = _TILE * _TILE // min(columns, _TILE)
    for row in range(0, rows, height):
        for column in range(0, columns, _TILE):
            tile = array[row : row + height, column : column + _TILE]
            turned[column : column + _TILE, row : row + height] = tile.T
    return turned


def _reversed(spec: TensorSpec) -> tuple[int, int]:
    if len(spec.shape) != 2:
        raise ValueError(f"{spec.name}: only 2-D tensors are transposed, not shape {spec.shape}")
    return spec.shape[1], spec.shape[0]
