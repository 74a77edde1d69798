"""From the tree of a file to a checkpoint: names for the arrays, paths for the leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptio import Cursor, FileCheckpoint, SourceFile, Span, TensorSpec
from ckptio.errors import CorruptCheckpointError
from ckptio.leaves import join_keys, leaf_problem
from ckptio_msgpack.arrays import Array
from ckptio_msgpack.walker import Walker
from ckptio_msgpack.wire import FLAT

__all__ = ["MsgpackCheckpoint", "read_checkpoint"]


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
    walker = Walker(Cursor(file))
    tree = walker.root()
    entries = _flat_entries(file, tree) if tree.get(FLAT) is True else _nested_entries(tree)
    arrays: dict[str, Array] = {}
    leaves: dict[str, Any] = {}
    for name, value in entries:
        if isinstance(value, Array):
            arrays[name] = value
        else:
            leaves[name] = value
            problem = leaf_problem(value)
            if problem:
                raise CorruptCheckpointError(f"{name!r}: {problem}", path=file.path)
    scalars = [name for name, array in arrays.items() if array.scalar]
    notes = {key: note for key, note in (("scalars", scalars), ("lists", walker.lists)) if note}
    return MsgpackCheckpoint(file, arrays, leaves, {"msgpack": notes} if notes else {})


def _flat_entries(file: SourceFile, tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            raise CorruptCheckpointError(
                f"the map is marked {FLAT}, but {name!r} in it is not an array or a plain value",
                path=file.path,
            )
        if name != FLAT:
            yield name, value


def _nested_entries(tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each array and leaf under its name, in the order of the file; without recursion."""
    keys: list[str] = []
    stack = [iter(tree.items())]
    while stack:
        for key, value in stack[-1]:
            if isinstance(value, dict) and value:
                keys.append(key)
                stack.append(iter(value.items()))
                break
            yield join_keys((*keys, key)), value
        else:
            stack.pop()
            del keys[-1:]
