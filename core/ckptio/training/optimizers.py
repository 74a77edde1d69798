"""The optimizer's part of a step, keyed by the names of the parameters and never by their positions.

The state of a torch optimizer becomes ``{"state": {parameter: {slot: value}}, "param_groups": [...]}``, its
tensors are named ``exp_avg.transformer.wte.weight``; a tied parameter is there once, under its first
name. Other optimizers (any with a state dict, or a plain dict) are kept as they nest.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ckptio.checkpoint import TensorSpec
from ckptio.errors import CorruptCheckpointError, OptionError, Problem
from ckptio.training.holders import as_checkpoint, put_state, state_of
from ckptio.training.trees import join_path, pack, unpack

__all__ = ["optimizer_differences", "optimizer_name", "optimizer_state", "put_optimizer", "tensor_names"]

_OWN = ("params", "param_names")
"""Keys of a parameter group that list its parameters."""


def _is_torch(optimizer: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(optimizer, torch.optim.Optimizer)


def optimizer_state(optimizer: Any, model: Any) -> Any:
    """Return the nested state of an optimizer; `OptionError` for a parameter that the model does not have."""
    if not _is_torch(optimizer):
        return state_of(optimizer, "the optimizer")
    names = _group_names(optimizer, model)
    raw = optimizer.state_dict()
    order = [name for group in names for name in group]
    groups = [
        {**{key: value for key, value in group.items() if key not in _OWN}, "params": its_names}
        for group, its_names in zip(raw["param_groups"], names, strict=True)
    ]
    return {**raw, "state": {order[at]: slots for at, slots in raw["state"].items()}, "param_groups": groups}


def optimizer_name(path: tuple[Any, ...]) -> str:
    """Return the name of a tensor of an optimizer: ``exp_avg.transformer.wte.weight``."""
    if len(path) > 2 and path[0] == "state":
        return join_path((*path[2:], path[1]))
    return join_path(path)


def tensor_names(tree: Any) -> list[str]:
    """Return the names of the tensors that a packed state refers to."""
    names: list[str] = []
    unpack(tree, lambda name, of_torch: names.append(name))
    return names


def optimizer_differences(
    optimizer: Any, model: Any, tree: Any, specs: Mapping[str, TensorSpec]
) -> list[Problem]:
    """Return how the saved state, packed as ``tree``, differs from what the optimizer has parameters for.

    ``specs`` are those of its saved tensors. Raises `CorruptCheckpointError` for no optimizer's state.
    """
    if _is_torch(optimizer):
        return _group_differences(_group_names(optimizer, model), _saved_groups(tree))
    tensors = pack(state_of(optimizer, "the optimizer"), optimizer_name)[1]
    saved = set(tensor_names(tree))
    if not tensors or not saved:
        return []
    own = as_checkpoint(tensors)
    problems = []
    for name in [*own.names(), *sorted(saved - set(own.names()))]:
        if name not in own or name not in saved:
            where = "checkpoint" if name in saved else "optimizer"
            problems.append(Problem(name, f"only in the {where}"))
        elif own.specs[own.canonical(name)].shape != specs[name].shape:
            shapes = own.specs[own.canonical(name)].shape, specs[name].shape
            problems.append(Problem(name, f"{shapes[0]} in the optimizer, {shapes[1]} in the checkpoint"))
    return problems


def put_optimizer(optimizer: Any, model: Any, state: Any) -> None:
    """Give an optimizer its state back; `optimizer_differences` has found none."""
    if not _is_torch(optimizer):
        put_state(optimizer, state, "the optimizer")
        return
    names = _group_names(optimizer, model)
    position = {name: at for at, name in enumerate(name for group in names for name in group)}
    # Groups without a parameter are told apart by their order.
    saved: dict[frozenset[str], list[Any]] = {}
    for group in state["param_groups"]:
        saved.setdefault(frozenset(group["params"]), []).append(group)
    groups = []
    for now, its_names in zip(optimizer.state_dict()["param_groups"], names, strict=True):
        kept = {key: value for key, value in now.items() if key in _OWN}
        groups.append({**saved[frozenset(its_names)].pop(0), **kept})
    slots = {position[name]: values for name, values in state["state"].items()}
    optimizer.load_state_dict({**state, "state": slots, "param_groups": groups})
    _undo_casts(optimizer, names, state["state"])


def _undo_casts(optimizer: Any, names: list[list[str]], saved: Mapping[str, Mapping[str, Any]]) -> None:
    """Put back what torch's ``load_state_dict`` has cast to the dtype of the parameter."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for name, parameter in zip((name for group in names for name in group), parameters, strict=True):
        for slot, value in saved.get(name, {}).items():
            now = optimizer.state[parameter].get(slot)
            if getattr(now, "dtype", None) != getattr(value, "dtype", None):
                optimizer.state[parameter][slot] = value.to(now.device)


def _group_names(optimizer: Any, model: Any) -> list[list[str]]:
    """Return the names of the parameters of each group, in the optimizer's own order."""
    named = model.items() if isinstance(model, Mapping) else model.named_parameters()
    names: dict[int, str] = {}
    for name, parameter in named:
        names.setdefault(id(parameter), name)
    groups = []
    for at, group in enumerate(optimizer.param_groups):
        unknown = [tuple(each.shape) for each in group["params"] if id(each) not in names]
        if unknown:
            raise OptionError(
                f"group {at} of the optimizer has {len(unknown)} parameters that are not the model's "
                f"(shapes {', '.join(map(str, unknown[:8]))}), so they have no names to be saved under"
            )
        groups.append([names[id(each)] for each in group["params"]])
    return groups


def _saved_groups(tree: Any) -> list[list[str]]:
    match tree:
        case {"state": dict(state), "param_groups": list(groups)}:
            names = [group.get("params") if isinstance(group, dict) else None for group in groups]
            flat = {name for group in names if isinstance(group, list) for name in group}
            sound = all(isinstance(group, list) for group in names)
            if sound and all(isinstance(each, str) for each in flat) and set(state) <= flat:
                return [group for group in names if group is not None]
    raise CorruptCheckpointError("the saved state is not that of an optimizer of torch")


def _group_differences(own: list[list[str]], saved: list[list[str]]) -> list[Problem]:
    ours = {name for group in own for name in group}
    theirs = {name for group in saved for name in group}
    problems = [Problem(name, "in the optimizer, not in the checkpoint") for name in sorted(ours - theirs)]
    problems += [Problem(name, "in the checkpoint, not in the optimizer") for name in sorted(theirs - ours)]
    if not problems and Counter(map(frozenset, own)) != Counter(map(frozenset, saved)):
        sizes = [len(group) for group in own], [len(group) for group in saved]
        what = f"of {sizes[0]} parameters here, of {sizes[1]} in the checkpoint, or divided otherwise"
        problems.append(Problem("parameter groups", what))
    return problems
