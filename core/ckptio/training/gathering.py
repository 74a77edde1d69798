"""What a step consists of: the parts with tensors, and all else for the trainer state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckptio.errors import OptionError
from ckptio.registry import registry
from ckptio.training.holders import as_checkpoint, state_of
from ckptio.training.models import flat_state
from ckptio.training.optimizers import optimizer_name, optimizer_state
from ckptio.training.options import CheckpointOptions
from ckptio.training.trees import pack, pack_plain
from ckptio.training.writing import Part

__all__ = ["BESIDE_MODELS", "Gathered", "gather"]

BESIDE_MODELS = "statedict"
"""The format of what a format for models alone cannot hold."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TAKEN = ("model", "optimizer", "trainer_state", "manifest")


@dataclass(frozen=True, slots=True)
class Gathered:
    """The parts of a step, and the section ``states`` of its trainer state.

    ``states`` has under ``model`` its ties and plain values, under ``optimizer`` and each name in ``extra`` a
    packed state (`ckptio.training.trees`) whose tensors are in the part of that name.
    """

    parts: list[Part]
    states: dict[str, Any]


def gather(
    options: CheckpointOptions,
    model: Any,
    optimizer: Any,
    extra: Mapping[str, Any] | None,
    config: Mapping[str, Any],
) -> Gathered:
    """Collect the states of everything; tensors are referred to, not copied.

    Raises `OptionError` for what is no state, and for a name that no extra state can have.
    """
    chosen = options.format()
    tensors, values = flat_state(state_of(model, "the model"))
    checkpoint = as_checkpoint(tensors, {"config": dict(config)} if config else {})
    parts = [Part("model", checkpoint, chosen, options.format_options)]
    states: dict[str, Any] = {
        "model": {"ties": dict(checkpoint.aliases), "values": pack_plain(values, "model")},
        "extra": {},
    }
    other, its_options = chosen, options.format_options
    if chosen.capabilities.holds == "model":
        other, its_options = registry().require(BESIDE_MODELS), {}

    if optimizer is not None and options.save_optimizer_state:
        states["optimizer"], tensors = pack(optimizer_state(optimizer, model), optimizer_name)
        if tensors:
            parts.append(Part("optimizer", as_checkpoint(tensors), other, its_options))
    for name, holder in (extra or {}).items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
            raise OptionError(
                f"extra state {name!r}: a name of letters, digits, _ and - is expected, and none of "
                f"{', '.join(_TAKEN)}"
            )
        states["extra"][name], tensors = pack(state_of(holder, name))
        if tensors:
            parts.append(Part(name, as_checkpoint(tensors), other, its_options))
    return Gathered(parts, states)
