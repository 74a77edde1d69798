"""The model's part of a step: its tensors by name, held against a checkpoint before they are replaced."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ckptio.checkpoint import Checkpoint, TensorSpec
from ckptio.elements import same_bytes
from ckptio.errors import Problem
from ckptio.models import apply_layout, known_layouts
from ckptio.training.holders import as_checkpoint, fill, read_tensor, state_of
from ckptio.training.trees import is_tensor

__all__ = ["completed", "flat_state", "load_model", "model_differences", "tie_groups"]


def flat_state(state: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of a state dict by name, and its other values.

    Keys of maps that hold tensors are joined with dots; a map without any is one value.
    """
    tensors: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for key, value in state.items():
        name = f"{prefix}{key}"
        if is_tensor(value):
            tensors[name] = value
        elif isinstance(value, Mapping) and (inner := flat_state(value, f"{name}."))[0]:
            tensors |= inner[0]
            values |= inner[1]
        else:
            values[name] = value
    return tensors, values


def tie_groups(aliases: Mapping[str, str]) -> set[frozenset[str]]:
    """Return the sets of names that share storage."""
    groups: dict[str, set[str]] = {}
    for alias, name in aliases.items():
        groups.setdefault(name, {name}).add(alias)
    return {frozenset(group) for group in groups.values()}


def completed(saved: Checkpoint, names: set[str]) -> Checkpoint:
    """Return ``saved`` with those of ``names`` that follow from its architecture, such as causal masks."""
    if all(name in saved for name in names):
        return saved
    for layout in known_layouts():
        result = apply_layout(saved, layout)
        if not result.problems and all(name in result.checkpoint for name in names):
            return result.checkpoint
    return saved


def model_differences(
    model: Any, saved: Checkpoint, ties: Mapping[str, str] | None, *, untied: bool = False
) -> list[Problem]:
    """Return everything in which the model is not the one that was saved: names, shapes, dtypes, ties.

    ``ties`` are those that the checkpoint recorded (None: it does not say). Values are read only where
    the model has one tensor of two that are saved. With ``untied`` other ties are no difference.
    """
    current = as_checkpoint(flat_state(state_of(model, "the model"))[0])
    groups = tie_groups(current.aliases)
    problems = []
    for name, spec in current.specs.items():
        sharing = next((group for group in groups if name in group), frozenset({name}))
        found = [each for each in current.names() if each in sharing and each in saved]
        problems += _tensor_differences(spec, found, saved)
    problems += [
        Problem(name, f"in the checkpoint ({_kind(saved.specs[saved.canonical(name)])}), not in the model")
        for name in saved.names()
        if name not in current
    ]
    if not untied:
        problems += _tie_differences(groups, ties, saved, current)
    return problems


def _tensor_differences(spec: TensorSpec, found: list[str], saved: Checkpoint) -> list[Problem]:
    if not found:
        return [Problem(spec.name, f"in the model ({_kind(spec)}), not in the checkpoint")]
    problems = []
    for name in found:
        its = saved.specs[saved.canonical(name)]
        if (its.dtype, its.shape) != (spec.dtype, spec.shape):
            problems.append(Problem(name, f"{_kind(spec)} in the model, {_kind(its)} in the checkpoint"))
    if problems:
        return problems
    first, *others = dict.fromkeys(saved.canonical(name) for name in found)
    return [
        Problem(other, f"one storage with {first} in the model, but two different tensors in the checkpoint")
        for other in others
        if not same_bytes(saved, first, other)
    ]


def _tie_differences(
    groups: set[frozenset[str]], ties: Mapping[str, str] | None, saved: Checkpoint, current: Checkpoint
) -> list[Problem]:
    recorded = tie_groups(saved.aliases if ties is None else ties)
    problems = []
    if ties is not None:
        for group in sorted(groups - recorded, key=sorted):
            what = "tied in the model, but separate tensors in the run that was saved"
            problems.append(Problem(" and ".join(sorted(group)), what))
    for group in sorted(recorded - groups, key=sorted):
        if group <= set(current.names()):
            what = "tied in the checkpoint, but separate tensors in the model"
            problems.append(Problem(" and ".join(sorted(group)), what))
    return problems


def _kind(spec: TensorSpec) -> str:
    return f"{spec.dtype.value} {spec.shape}"


def load_model(model: Any, saved: Checkpoint, values: Mapping[str, Any]) -> None:
    """Put the saved tensors into the model; `model_differences` has found none.

    Tensors that the model itself hands out are filled in place, so nothing is held twice and what shares
    storage goes on sharing it. Others go through its ``load_state_dict``.
    """
    state = state_of(model, "the model")
    tensors, others = flat_state(state)
    current = as_checkpoint(tensors)
    source = {name: _saved_name(name, current, saved) for name in current.specs}
    if isinstance(model, Mapping):
        _fill_mapping(model, "", source, saved, values)
    elif not others and not values and _hands_out_its_own(model, tensors):
        for name, its in source.items():
            fill(saved, its, tensors[name])
    else:
        read = {name: read_tensor(saved, its, not _is_numpy(tensors[name])) for name, its in source.items()}
        shared = {name: read[current.canonical(name)] for name in tensors}
        model.load_state_dict(_rebuilt(state, "", {**others, **values, **shared}))


def _rebuilt(state: Mapping[str, Any], prefix: str, by_name: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict that nests as ``state`` does, of the tensors and values in ``by_name``."""
    return {
        key: by_name[name] if (name := f"{prefix}{key}") in by_name else _rebuilt(value, f"{name}.", by_name)
        for key, value in state.items()
    }


def _saved_name(name: str, current: Checkpoint, saved: Checkpoint) -> str:
    sharing = [name, *(alias for alias, its in current.aliases.items() if its == name)]
    return next(each for each in sharing if each in saved)


def _fill_mapping(
    target: Any, prefix: str, source: Mapping[str, str], saved: Checkpoint, values: Mapping[str, Any]
) -> None:
    for key, old in list(target.items()):
        name = f"{prefix}{key}"
        if name in values:
            target[key] = values[name]
        elif isinstance(old, Mapping):
            _fill_mapping(old, f"{name}.", source, saved, values)
        elif name in source and isinstance(old, np.generic | np.ndarray) and not _writeable(old):
            target[key] = saved.read(source[name])
        elif name in source:
            fill(saved, source[name], old)


def _writeable(old: Any) -> bool:
    return isinstance(old, np.ndarray) and old.flags.writeable


def _is_numpy(tensor: Any) -> bool:
    return isinstance(tensor, np.ndarray | np.generic)


def _hands_out_its_own(model: Any, tensors: Mapping[str, Any]) -> bool:
    """Return whether the state dict of a module has its very parameters and buffers, and no copies."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return False
    if type(model).load_state_dict is not torch.nn.Module.load_state_dict:
        return False
    own = [*model.parameters(), *model.buffers()]
    places = {each.untyped_storage().data_ptr() for each in own if each.numel()}
    return all(not each.numel() or each.untyped_storage().data_ptr() in places for each in tensors.values())
