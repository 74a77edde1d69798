"""From the value of a pickle to names: tensors, plain leaves, and notes on what names cannot say.

Keys are joined with ``/`` as `ckptio.leaves.join_keys` does. An integer as a key is spelled in decimals;
the elements of a list or tuple that holds tensors or maps have their index as key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptio import CorruptCheckpointError, Problem, UnsupportedError, current_limits
from ckptio.jsontext import nesting_problem, parse_object
from ckptio.leaves import join_keys
from ckptio_torch.attributes import NOT_JSON, as_json
from ckptio_torch.reasons import reason
from ckptio_torch.records import Global, Map, Storage, StorageType, Tagged, Tensor, Unknown, kind_of
from ckptio_torch.source import Budget

__all__ = ["OWN", "ROOT_TENSOR", "Tree", "flatten"]

OWN = "_ckptio"
"""The attribute of the outermost OrderedDict in which our writer keeps what a dict has no room for."""
ROOT_TENSOR = "tensor"
"""The name of the tensor in a file that is nothing but one tensor."""
_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes})
_NOT_PLAIN = object()


@dataclass(slots=True)
class Tree:
    """What a pickle holds, by name; ``notes`` are what a writer needs to give the same tree back.

    ``root`` (when it is no dict: ``OrderedDict``, ``list``, ``tuple`` or ``tensor``), ``kinds`` (the type
    of what lies at a path), ``int_keys`` (paths whose last key is an integer), ``attributes`` of
    OrderedDicts by path, ``parameters`` (name: requires_grad) and ``requires_grad``. ``metadata`` is what
    our own writer added, ``storages`` are all that the pickle names, by key.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    leaves: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    left_out: list[Problem] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    storages: Mapping[str, Storage] = field(default_factory=dict)


def flatten(value: Any, budget: Budget, path: Path) -> Tree:
    """Return the tree of one pickle, read from the file ``path``.

    Raises `CorruptCheckpointError` for names that clash or a tree out of all proportion, and
    `UnsupportedError` for what has no name or no place among tensors and leaves.
    """
    return _Flattening(budget, path).run(value)


class _Flattening:
    def __init__(self, budget: Budget, path: Path) -> None:
        self.budget = budget
        self.path = path
        self.limits = current_limits()
        self.tree = Tree()
        self._flat = False

    def run(self, root: Any) -> Tree:
        kind = kind_of(root)
        if isinstance(root, Tensor):
            self._add(ROOT_TENSOR, root)
            kind = ROOT_TENSOR
        elif isinstance(root, Unknown):
            self._leave_out("", root.name)
            self._descend(root.content)
        elif isinstance(root, Map | list | tuple):
            if isinstance(root, Map) and root.attributes is not None:
                self._attributes("", root.attributes)
            self._descend(root)
        else:
            raise UnsupportedError(
                f"{self.path}: holds a single {type(root).__name__}, and no tensors by name"
            )
        if kind is not None:
            self.tree.notes["root"] = kind
        return self.tree

    def _descend(self, root: Any) -> None:
        """Go through maps and lists in the order of the file, without recursion."""
        stack: list[Iterator[tuple[str, Any]]] = [self._entries("", root)]
        while stack:
            for name, value in stack[-1]:
                inner = self._inner(name, value)
                if inner is not None:
                    if len(stack) >= self.limits.nesting:
                        raise self._error(f"{_short(name)}: nested more than {self.limits.nesting} deep")
                    stack.append(self._entries(name + "/", inner))
                    break
            else:
                stack.pop()

    def _entries(self, prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield the entries of a map or list under their full names."""
        if not isinstance(value, Map):
            for index, item in enumerate(value):
                yield f"{prefix}{index}", item
            return
        for key, item in zip(value.items[::2], value.items[1::2], strict=True):
            if type(key) is int:
                name = f"{prefix}{key}"
                self.tree.notes.setdefault("int_keys", []).append(name)
            elif isinstance(key, str):
                # A dict marked as flat has names as keys, which need not nest.
                name = key if self._flat and not prefix else prefix + join_keys((key,))
            else:
                what = key.name if isinstance(key, Unknown) else type(key).__name__
                where = _short(prefix.rstrip("/")) or "the outermost dict"
                raise UnsupportedError(
                    f"{self.path}: {where} has a key that is no text or integer, but {what}"
                )
            yield name, item

    def _inner(self, name: str, value: Any) -> Any:
        """Take in what is at ``name``; return its entries when it has any of its own."""
        self.budget.spend(100 + 2 * len(name))
        if isinstance(value, Tensor):
            self._add(name, value)
            return None
        if isinstance(value, Unknown):
            self._leave_out(name, value.name)
            return value.content if value.content.items else None
        if isinstance(value, Storage | StorageType | Global):
            what = "a class" if isinstance(value, StorageType | Global) else "a bare storage"
            raise UnsupportedError(f"{self.path}: {_short(name)} is {what}, no tensor or plain value")
        kind = kind_of(value)
        if isinstance(value, Map) and (value.items or value.attributes is not None):
            if kind is not None:
                self._note(name, kind)
            if value.attributes is not None:
                self._attributes(name, value.attributes)
            if value.items:
                return value
            self._leaf(name, {})
            return None
        leaf = self._plain(name, value)
        if leaf is _NOT_PLAIN:
            self._note(name, kind or "list")
            return value
        self._leaf(name, leaf)
        return None

    def _add(self, name: str, tensor: Tensor) -> None:
        self._check_new(name)
        self.tree.tensors[name] = tensor
        if len(self.tree.tensors) > self.limits.tensors:
            raise self._error(f"more than {self.limits.tensors} tensors")
        if tensor.parameter:
            self.tree.notes.setdefault("parameters", {})[name] = tensor.requires_grad
        elif tensor.requires_grad:
            self.tree.notes.setdefault("requires_grad", []).append(name)
        if tensor.stripped:
            self._leave_out(name, "torch._tensor._rebuild_from_type_v2")

    def _leaf(self, name: str, value: Any) -> None:
        self._check_new(name)
        self.tree.leaves[name] = value

    def _check_new(self, name: str) -> None:
        if name in self.tree.tensors or name in self.tree.leaves:
            raise self._error(f"two values have the name {_short(name)}")

    def _plain(self, name: str, value: Any) -> Any:
        """Return ``value`` as a leaf, or `_NOT_PLAIN` when it has tensors, maps or objects in it."""
        found: list[Any] = []
        kinds: list[tuple[str, str]] = []
        stack: list[tuple[Any, list[Any], str, int]] = [(value, found, name, 0)]
        while stack:
            each, out, where, depth = stack.pop()
            kind = kind_of(each)
            if kind is not None and kind != "list":
                kinds.append((where, kind))
            if isinstance(each, Tagged):
                each = each.value
            if isinstance(each, Map):
                if each.items or each.attributes is not None:
                    return _NOT_PLAIN
                out.append({})
            elif isinstance(each, list | tuple):
                if depth > self.limits.nesting:
                    raise self._error(f"{_short(name)}: nested more than {self.limits.nesting} deep")
                self.budget.spend(64 + 9 * len(each))
                if all(type(item) in _SCALARS for item in each):
                    out.append(list(each))
                    continue
                self.budget.spend(len(each) * (100 + len(where)))
                inner: list[Any] = []
                out.append(inner)
                stack.extend(
                    (item, inner, f"{where}/{index}", depth + 1)
                    for index, item in reversed(list(enumerate(each)))
                )
            elif type(each) in _SCALARS:
                out.append(each)
            else:
                return _NOT_PLAIN
        for where, kind in kinds:
            self._note(where, kind)
        return found[0]

    def _note(self, where: str, kind: str) -> None:
        self.tree.notes.setdefault("kinds", {})[where] = kind

    def _attributes(self, where: str, attributes: Map) -> None:
        """Keep the attributes of an OrderedDict (torch's ``_metadata``: the versions of the modules)."""
        for key, value in zip(attributes.items[::2], attributes.items[1::2], strict=True):
            plain = as_json(value, self.budget)
            if where == "" and key == OWN and isinstance(plain, str):
                self._take_own(plain)
            elif isinstance(key, str) and plain is not NOT_JSON:
                self.tree.notes.setdefault("attributes", {}).setdefault(where, {})[key] = plain
            else:
                what = _short(key) if isinstance(key, str) else f"under a {type(key).__name__}"
                self._leave_out(where, f"the attribute {what} of an OrderedDict")

    def _take_own(self, text: str) -> None:
        own = parse_object(text.encode("utf-8", "surrogatepass"), f"the attribute {OWN}", path=self.path)
        metadata = own.get("metadata", {})
        if nesting_problem(own) or not isinstance(metadata, dict):
            raise self._error(f"the attribute {OWN} is not what ckptio writes")
        self.tree.metadata = metadata
        self._flat = own.get("flat") is True

    def _leave_out(self, where: str, name: str) -> None:
        what = f"{name}: {reason(name)}; left out"
        self.tree.left_out.append(Problem(where, what, "skipped"))

    def _error(self, what: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(what, path=self.path)


def _short(name: str) -> str:
    return repr(name) if len(name) <= 200 else repr(name[:200]) + "…"
