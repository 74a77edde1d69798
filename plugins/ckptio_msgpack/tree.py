"""From a checkpoint to the tree that is written, and what of it msgpack cannot hold.

In the tree, a dict that is not empty is a map, a `TensorSpec` is a tensor, a list that was one in
the source is a list; all else is a plain leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckptio import Checkpoint, current_limits
from ckptio.leaves import can_nest, split_name
from ckptio_msgpack.wire import FLAT

__all__ = ["build_tree", "in_order", "noted_scalars"]

_CHUNK_LEVELS = 2
"""The maps that a chunked array adds."""


def build_tree(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the nested maps that the names of tensors and leaves spell.

    Names that do not nest, or nest deeper than a reader follows, come to stand in one marked map.
    """
    entries: dict[str, Any] = {**checkpoint.leaves, **checkpoint.specs}
    deepest = current_limits().nesting - _CHUNK_LEVELS
    if not can_nest(entries) or any(name.count("/") >= deepest for name in entries):
        return {**entries, FLAT: True}
    tree: dict[str, Any] = {}
    for name, value in entries.items():
        *parents, last = split_name(name)
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = value
    _restore_lists(tree, _notes(checkpoint).get("lists"))
    return tree


def noted_scalars(checkpoint: Checkpoint) -> frozenset[str]:
    """Return the names of the 0-d tensors that were numpy scalars in the source."""
    names = _notes(checkpoint).get("scalars")
    found = [name for name in names if isinstance(name, str)] if isinstance(names, list | tuple) else []
    return frozenset(n for n in found if n in checkpoint.specs and checkpoint.specs[n].shape == ())


def _notes(checkpoint: Checkpoint) -> Mapping[str, Any]:
    notes = checkpoint.metadata.get("msgpack")
    return notes if isinstance(notes, Mapping) else {}


def _restore_lists(tree: dict[str, Any], lists: Any) -> None:
    """Turn the maps noted as lists back into lists, where all of their elements are still there."""
    if not isinstance(lists, Mapping):
        return
    # A path that cannot be split is none of ours.
    paths = [path for path in lists if isinstance(path, str) and can_nest([path])]
    # The innermost first: what lies around them must still be maps to be found.
    for path in sorted(paths, key=lambda path: path.count("/"), reverse=True):
        *parents, last = split_name(path)
        parent = _at(tree, parents)
        node = parent.get(last) if parent is not None else None
        if isinstance(node, dict) and node and len(node) == lists[path]:
            indices = [str(index) for index in range(len(node))]
            if node.keys() == set(indices):
                parent[last] = [node[index] for index in indices]


def _at(tree: dict[str, Any], keys: Iterable[str]) -> Any:
    node: Any = tree
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else None


def in_order(tree: dict[str, Any]) -> Iterator[tuple[str | None, Any, bool]]:
    """Yield (key, value, whether it is inside a list) for all values in the order of the file.

    Maps are sorted by key, as flax's are (jax sorts them); the key of an element of a list is None.
    """
    yield None, tree, False
    stack = [(_entries(tree), False)]
    while stack:
        entries, inside = stack[-1]
        for key, value in entries:
            yield key, value, inside
            if isinstance(value, dict | list) and value:
                stack.append((_entries(value), inside or isinstance(value, list)))
                break
        else:
            stack.pop()


def _entries(node: dict[str, Any] | list[Any]) -> Iterator[tuple[str | None, Any]]:
    if isinstance(node, dict):
        return iter(sorted(node.items(), key=lambda entry: entry[0]))
    return ((None, value) for value in node)
