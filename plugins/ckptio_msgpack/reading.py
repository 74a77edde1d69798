"""From the tree of a file to a checkpoint: names for the arrays, paths for the leaves."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ckptio import Cursor, FileCheckpoint, SourceFile, Span, TensorSpec
from ckptio.errors import CorruptCheckpointError
from ckptio.leaves import join_keys, leaf_problem
from ckptio_msgpack.arrays import Array
from ckptio_msgpack.walker import Items, Walker
from ckptio_msgpack.wire import FLAT

__all__ = ["MsgpackCheckpoint", "read_checkpoint"]

_NAME_BYTES = 16 << 20


class MsgpackCheckpoint(FileCheckpoint):
    """A checkpoint whose tensors may each lie in several pieces, the chunks of a large array."""

    def __init__(
        self,
        file: SourceFile,
        arrays: Mapping[str, Array],
        leaves: Mapping[str, Any],
        metadata: Mapping[str, Any],
    ) -> None:
        specs = {name: TensorSpec(name, array.dtype, array.shape) for name, array in arrays.items()}
        super().__init__(file, specs, {}, leaves=leaves, metadata=metadata)
        self._arrays = arrays

    def spans(self, name: str) -> Sequence[Span]:
        return [Span(self.file, offset, length) for offset, length in self._arrays[name].pieces]


def read_checkpoint(file: SourceFile) -> MsgpackCheckpoint:
    """Return the checkpoint that ``file`` holds.

    ``metadata["msgpack"]`` is what names cannot say and a writer needs to give the same structure
    back: ``scalars``, the names of numpy scalars, and ``lists``, the path and length of each list
    whose elements are tensors or maps.
    """
    tree = Walker(Cursor(file)).root()
    arrays: dict[str, Array] = {}
    leaves: dict[str, Any] = {}
    lists: dict[str, int] = {}
    for name, value in _bounded(file, _flat(file, tree) if tree.get(FLAT) is True else _nested(tree)):
        if isinstance(value, Array):
            arrays[name] = value
        elif isinstance(value, Items):
            lists[name] = len(value)
        else:
            leaves[name] = value
            problem = leaf_problem(value)
            if problem:
                raise CorruptCheckpointError(f"{name!r}: {problem}", path=file.path)
    scalars = [name for name, array in arrays.items() if array.scalar]
    notes = {key: note for key, note in (("scalars", scalars), ("lists", lists)) if note}
    return MsgpackCheckpoint(file, arrays, leaves, {"msgpack": notes} if notes else {})


def _flat(file: SourceFile, tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each array and leaf of a map whose keys are whole names."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            raise CorruptCheckpointError(
                f"the map is marked {FLAT}, but {name!r} in it is not an array or a plain value",
                path=file.path,
            )
        if name != FLAT:
            yield name, value


def _nested(tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each array, leaf and `Items` under its name, in the order of the file; without recursion."""
    stack = [("", iter(tree.items()))]
    while stack:
        prefix, entries = stack[-1]
        for key, value in entries:
            name = prefix + join_keys([key])
            if isinstance(value, dict) and value:
                if isinstance(value, Items):
                    yield name, value
                stack.append((name + "/", iter(value.items())))
                break
            yield name, value
        else:
            stack.pop()


def _bounded(file: SourceFile, entries: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Refuse names that together are out of proportion: one long key repeats in all names under it."""
    room = _NAME_BYTES + 4 * file.size
    for name, value in entries:
        room -= sys.getsizeof(name)
        if room < 0:
            raise CorruptCheckpointError(
                f"the names of the tensors are much larger than the file, as in {name[:50]!r}…",
                path=file.path,
            )
        yield name, value
