"""Nested states as JSON and tensors: what schedulers, scalers, optimizers and generators hold.

The JSON mirrors the nesting. Numbers, text and bytes are those of `ckptio.leaves`; beyond them:

- ``{"$array": name}`` and ``{"$tensor": name}``: an array of numpy, a tensor of torch, kept under that name;
- ``{"$tuple": [...]}``, ``{"$map": [[key, value], ...]}`` (keys that are no plain text) and
  ``{"$counter": [[key, count], ...]}`` (a `collections.Counter`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ckptio.errors import OptionError
from ckptio.leaves import decode_leaf, encode_leaf, leaf_problem

__all__ = ["is_tensor", "pack", "pack_plain", "unpack", "unpack_plain"]

_DEEPEST = 100
Path = tuple[Any, ...]


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is an array of numpy (or a scalar of it) or a tensor of torch."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray | np.generic) or (
        torch is not None and isinstance(value, torch.Tensor)
    )


def join_path(path: Path) -> str:
    """Return the name of what lies under ``path``: its keys, joined with dots."""
    return ".".join(map(str, path))


def pack(value: Any, name_of: Callable[[Path], str] = join_path) -> tuple[Any, dict[str, Any]]:
    """Return the JSON of a nested state, and its arrays and tensors by name.

    ``name_of`` names what lies under a path of keys. Raises `OptionError`, with the path, for a value
    that is neither plain nor a tensor.
    """
    tensors: dict[str, Any] = {}

    def keep(tensor: Any, path: Path) -> dict[str, str]:
        name = base = name_of(path) or "value"
        while name in tensors:
            # Two paths may read the same ("a.b" and "c"; "a" and "b.c").
            name = f"{base}#{len(tensors)}"
        tensors[name] = tensor
        return {"$array" if isinstance(tensor, np.ndarray | np.generic) else "$tensor": name}

    return _pack(value, (), keep), tensors


def pack_plain(value: Any, what: str = "") -> Any:
    """Return the JSON of a nested state without tensors; scalars of numpy become numbers."""

    def refuse(tensor: Any, path: Path) -> Any:
        if isinstance(tensor, np.generic) and leaf_problem(tensor.item()) is None:
            return encode_leaf(tensor.item())
        raise OptionError(f"{join_path(path)}: a tensor has no place here; give it as a named state (extra=)")

    return _pack(value, (what,) if what else (), refuse)


def unpack(tree: Any, tensor: Callable[[str, bool], Any]) -> Any:
    """Return the nested state of which `pack` made ``tree``; ValueError when it did not.

    ``tensor`` is called with a name, and whether it is wanted as a tensor of torch.
    """
    return _unpack(tree, tensor, 0)


def unpack_plain(tree: Any) -> Any:
    """Return the nested state of which `pack_plain` made ``tree``; ValueError when it did not."""

    def refuse(name: str, of_torch: bool) -> Any:
        raise ValueError(f"a tensor {name!r} where none can be")

    return _unpack(tree, refuse, 0)


def _pack(value: Any, path: Path, keep: Callable[[Any, Path], Any]) -> Any:
    if len(path) > _DEEPEST:
        raise OptionError(f"{join_path(path[:3])}…: nested more than {_DEEPEST} deep")
    if is_tensor(value):
        return keep(value, path)
    if isinstance(value, Counter):
        return {"$counter": [[_pack(key, path, keep), count] for key, count in value.items()]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {str(key): _pack(each, (*path, key), keep) for key, each in value.items()}
        pairs = [[_pack(key, path, keep), _pack(each, (*path, key), keep)] for key, each in value.items()]
        return {"$map": pairs}
    if isinstance(value, list | tuple):
        items = [_pack(each, (*path, index), keep) for index, each in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    problem = leaf_problem(value)
    if problem:
        raise OptionError(f"{join_path(path)}: {problem}")
    return encode_leaf(value)


def _unpack(tree: Any, tensor: Callable[[str, bool], Any], depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} deep")
    if isinstance(tree, list):
        return [_unpack(each, tensor, depth + 1) for each in tree]
    match tree:
        case {"$array": str(name)} if len(tree) == 1:
            return tensor(name, False)
        case {"$tensor": str(name)} if len(tree) == 1:
            return tensor(name, True)
        case {"$tuple": list(items)} if len(tree) == 1:
            return tuple(_unpack(each, tensor, depth + 1) for each in items)
        case {"$map": list(pairs)} if len(tree) == 1:
            return dict(_pairs(pairs, tensor, depth))
        case {"$counter": list(pairs)} if len(tree) == 1:
            return Counter(dict(_pairs(pairs, tensor, depth)))
        case dict() if not any(key.startswith("$") for key in tree):
            return {key: _unpack(each, tensor, depth + 1) for key, each in tree.items()}
    return decode_leaf(tree)


def _pairs(pairs: list[Any], tensor: Callable[[str, bool], Any], depth: int) -> list[tuple[Any, Any]]:
    found = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("a map's entry is no pair of key and value")
        key, value = (_unpack(each, tensor, depth + 1) for each in pair)
        try:
            hash(key)
        except TypeError:
            raise ValueError(f"a map's key is {type(key).__name__}") from None
        found.append((key, value))
    return found
