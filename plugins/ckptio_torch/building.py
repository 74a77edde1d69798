"""From a checkpoint to the tree that is written: the inverse of ``ckptio_torch.tree``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ckptio import Checkpoint, TensorSpec, current_limits
from ckptio.leaves import can_nest, join_keys, split_name
from ckptio_torch.dtypes import DTYPES, STORAGES
from ckptio_torch.records import Map, Storage, Tagged, Tensor
from ckptio_torch.tree import OWN, ROOT_TENSOR

__all__ = ["build_tree", "own_metadata"]

_DEVICE = re.compile(r"[a-z]+(:[0-9]{1,9})?")
_DICTS = ("OrderedDict", "Counter")
_HASHABLE = (type(None), bool, int, float, complex, str, bytes)


def build_tree(checkpoint: Checkpoint) -> Any:
    """Return the record of a whole checkpoint; the storage of the n-th stored tensor has the key ``n``.

    Dicts, or what ``metadata["torch"]`` notes of a source that was torch's. Metadata, and the mark of
    a flat dict (whose names do not nest), stand in an attribute of the outermost OrderedDict, where
    neither ``torch.load`` nor ``load_state_dict`` stumbles over them.
    """
    notes = _Notes(checkpoint.metadata.get("torch"))
    tensors = _tensors(checkpoint, notes)
    if notes.root == ROOT_TENSOR and [*tensors, *checkpoint.leaves] == [ROOT_TENSOR]:
        return tensors[ROOT_TENSOR]
    entries = {**{name: notes.leaf(name, leaf) for name, leaf in checkpoint.leaves.items()}, **tensors}
    own: dict[str, Any] = {}
    deepest = current_limits().nesting
    if can_nest(entries) and all(name.count("/") < deepest for name in entries):
        root = notes.nest(entries)
    else:
        root, own = _map(entries.items()), {"flat": True}
    metadata = own_metadata(checkpoint)
    if metadata:
        own["metadata"] = metadata
    if own and isinstance(root, Map):
        root.kind = "OrderedDict"
        root.attributes = root.attributes or Map()
        root.attributes.items += [OWN, json.dumps(own, allow_nan=False)]
    return root


def own_metadata(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the metadata without the reader's notes on this format, which become the tree itself."""
    return {key: value for key, value in checkpoint.metadata.items() if key != "torch"}


def _tensors(checkpoint: Checkpoint, notes: _Notes) -> dict[str, Tensor]:
    storages = {
        name: _storage(str(index), spec) for index, (name, spec) in enumerate(checkpoint.specs.items())
    }
    found = {}
    for name in checkpoint.names():
        canonical = checkpoint.canonical(name)
        spec = checkpoint.specs[canonical]
        requires_grad, parameter = notes.gradient(name)
        strides = tuple(
            math.prod(max(1, size) for size in spec.shape[i + 1 :]) for i in range(len(spec.shape))
        )
        found[name] = Tensor(
            storages[canonical], spec.dtype, 0, spec.shape, strides, requires_grad, parameter
        )
    return found


def _storage(key: str, spec: TensorSpec) -> Storage:
    return Storage(key, spec.dtype if spec.dtype in STORAGES else None, 0, spec.nbytes, spec.nbytes)


class _Notes:
    """What a reader of torch's files noted; anything else in its place is ignored."""

    def __init__(self, notes: Any) -> None:
        found = notes if isinstance(notes, Mapping) else {}
        self.root = found.get("root")
        self._kinds = _mapping(found.get("kinds"))
        self._attributes = _mapping(found.get("attributes"))
        self._parameters = _mapping(found.get("parameters"))
        self._int_keys = _texts(found.get("int_keys"))
        self._gradients = _texts(found.get("requires_grad"))
        self._parents = {path[:cut] for path in self._kinds for cut in _cuts(path)}

    def gradient(self, name: str) -> tuple[bool, bool]:
        """Return whether a tensor requires gradients, and whether it is a Parameter."""
        if name in self._parameters:
            return self._parameters[name] is True, True
        return name in self._gradients, False

    def leaf(self, path: str, value: Any) -> Any:
        """Return a leaf with the types back that it had."""
        if isinstance(value, list | tuple):
            if path in self._parents:
                value = [self.leaf(f"{path}/{index}", item) for index, item in enumerate(value)]
            else:
                value = list(value)
        elif isinstance(value, Mapping):
            kind = self._kinds.get(path)
            return self._with_attributes(Map(kind if kind in _DICTS else None), path)
        return _retyped(self._kinds.get(path), value)

    def nest(self, entries: Mapping[str, Any]) -> Any:
        """Return the nested records that the names of ``entries`` spell."""
        tree: dict[str, Any] = {}
        for name, value in entries.items():
            *parents, last = split_name(name)
            node = tree
            for key in parents:
                node = node.setdefault(key, {})
            node[last] = value
        # Children come after their parents in this list, so that going back each finds its own done.
        holder: dict[str, Any] = {"": tree}
        order: list[tuple[dict[str, Any], str, str]] = [(holder, "", "")]
        for parent, key, prefix in order:
            node = parent[key]
            for name, value in node.items():
                if isinstance(value, dict):
                    order.append((node, name, f"{prefix}{join_keys((name,))}/"))
        for parent, key, prefix in reversed(order):
            parent[key] = self._node(parent[key], prefix)
        return holder[""]

    def _node(self, node: dict[str, Any], prefix: str) -> Any:
        """Return the record of one map, whose entries have their own done; ``prefix`` is "" for the root."""
        path = prefix[:-1]
        kind = self._kinds.get(path) if prefix else self.root
        if kind in ("list", "tuple") and node.keys() == set(map(str, range(len(node)))):
            items = [node[str(index)] for index in range(len(node))]
            return tuple(items) if kind == "tuple" else items
        found = _map((self._key(prefix, key), value) for key, value in node.items())
        found.kind = kind if kind in _DICTS else None
        return self._with_attributes(found, path)

    def _key(self, prefix: str, key: str) -> str | int:
        if prefix + join_keys((key,)) in self._int_keys and re.fullmatch(r"0|-?[1-9][0-9]{0,600}", key):
            return int(key)
        return key

    def _with_attributes(self, found: Map, path: str) -> Map:
        attributes = self._attributes.get(path)
        if found.kind == "OrderedDict" and isinstance(attributes, Mapping) and attributes:
            found.attributes = _map((key, _record(value, "OrderedDict")) for key, value in attributes.items())
        return found


def _retyped(kind: Any, value: Any) -> Any:
    """Return ``value`` as what it was, when it can be that still."""
    match kind, value:
        case "tuple", list():
            return tuple(value)
        case "set", list() if all(isinstance(item, _HASHABLE) for item in value):
            return Tagged(kind, value)
        case "torch.Size", list() if all(type(item) is int and 0 <= item < 1 << 63 for item in value):
            return Tagged(kind, value)
        case "bytearray", bytes():
            return Tagged(kind, value)
        case "torch.dtype", str() if value in DTYPES:
            return Tagged(kind, value)
        case "torch.device", str() if _DEVICE.fullmatch(value):
            return Tagged(kind, value)
    return value


def _record(value: Any, kind: str | None = None) -> Any:
    """Return the record of a JSON value; what was an OrderedDict in ``_metadata`` is one again."""
    if isinstance(value, Mapping):
        found = _map((key, _record(item)) for key, item in value.items())
        found.kind = kind
        return found
    return [_record(item) for item in value] if isinstance(value, list | tuple) else value


def _map(entries: Iterable[tuple[Any, Any]]) -> Map:
    return Map(items=[each for entry in entries for each in entry])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Any) -> frozenset[str]:
    return (
        frozenset(each for each in value if isinstance(each, str))
        if isinstance(value, list | tuple)
        else frozenset()
    )


def _cuts(path: str) -> Iterable[int]:
    return (index for index, letter in enumerate(path) if letter == "/")
