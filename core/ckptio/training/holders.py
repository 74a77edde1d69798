"""What holds a state: modules, optimizers, schedulers, generators, plain dicts; arrays as checkpoints."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np

from ckptio.checkpoint import Checkpoint
from ckptio.errors import OptionError, UnsupportedError
from ckptio.joined import JoinedCheckpoint
from ckptio.saving import in_memory
from ckptio.training.trees import is_tensor

__all__ = ["as_checkpoint", "fill", "put_state", "read_tensor", "state_of"]


def state_of(holder: Any, what: str) -> Any:
    """Return the nested state of a holder: a map of its own, or what its own method gives.

    Raises `OptionError`, naming ``what`` it is, for an object that holds none.
    """
    if isinstance(holder, Mapping):
        return holder
    if hasattr(holder, "state_dict") and hasattr(holder, "load_state_dict"):
        return holder.state_dict()
    if isinstance(holder, np.random.Generator):
        return holder.bit_generator.state
    if isinstance(holder, random.Random):
        return holder.getstate()
    if hasattr(holder, "get_state") and hasattr(holder, "set_state"):
        return holder.get_state()
    raise OptionError(
        f"{what} is {type(holder).__name__}: something with state_dict() and load_state_dict(), "
        "a random generator or a dict is expected"
    )


def put_state(holder: Any, state: Any, what: str) -> None:
    """Give a holder back the state that `state_of` returned; a dict is changed in place, its arrays too.

    Raises `OptionError` for a dict that cannot be changed.
    """
    if isinstance(holder, Mapping):
        if not isinstance(holder, MutableMapping):
            raise OptionError(f"{what} is {type(holder).__name__}, which cannot be changed")
        _put_into(holder, state)
    elif hasattr(holder, "load_state_dict"):
        holder.load_state_dict(state)
    elif isinstance(holder, np.random.Generator):
        holder.bit_generator.state = state
    elif isinstance(holder, random.Random):
        holder.setstate(state)
    else:
        holder.set_state(state)


def _put_into(target: MutableMapping[Any, Any], state: Mapping[Any, Any]) -> None:
    for key in [key for key in target if key not in state]:
        del target[key]
    for key, value in state.items():
        old = target.get(key)
        if isinstance(old, MutableMapping) and isinstance(value, Mapping):
            _put_into(old, value)
        elif isinstance(old, np.ndarray) and isinstance(value, np.ndarray) and _fits(old, value):
            # Others may hold the array, or a view of it.
            old[...] = value
        else:
            target[key] = value


def _fits(old: np.ndarray[Any, Any], new: np.ndarray[Any, Any]) -> bool:
    return old.flags.writeable and (old.dtype, old.shape) == (new.dtype, new.shape)


def as_checkpoint(tensors: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> Checkpoint:
    """Return a checkpoint over arrays of numpy and tensors of torch; what shares storage is a tie.

    Raises `OptionError` for one that no checkpoint can hold.
    """
    arrays = {name: each for name, each in tensors.items() if isinstance(each, np.ndarray | np.generic)}
    if len(arrays) == len(tensors):
        return in_memory(arrays, {}, {}, metadata or {})
    from ckptio.torch import StateDict

    of_torch = {name: each for name, each in tensors.items() if name not in arrays}
    state_dict = StateDict(of_torch, metadata=metadata)
    return JoinedCheckpoint([in_memory(arrays, {}, {}, {}), state_dict]) if arrays else state_dict


def read_tensor(checkpoint: Checkpoint, name: str, of_torch: bool) -> Any:
    """Return one tensor of an open checkpoint, as an array of numpy or a tensor of torch."""
    if not of_torch:
        return checkpoint.read(name)
    if "torch" not in sys.modules:
        raise UnsupportedError(f"{name} is a tensor of torch, which this program has not imported")
    from ckptio.torch import read

    return read(checkpoint, name)


def fill(checkpoint: Checkpoint, name: str, target: Any) -> None:
    """Read a tensor into an array or tensor of its dtype and shape, directly into its memory if possible."""
    assert is_tensor(target)
    if isinstance(target, np.ndarray):
        if target.flags.c_contiguous and target.dtype.isnative:
            checkpoint.read_into(name, target.reshape(-1).view(np.uint8).data)
        else:
            target[...] = checkpoint.read(name)
        return
    import torch

    from ckptio.torch import read

    flat = target.detach()
    plain = flat.device.type == "cpu" and flat.is_contiguous() and not (flat.is_conj() or flat.is_neg())
    if plain and flat.numel():
        checkpoint.read_into(name, flat.reshape(-1).view(torch.uint8).numpy().data)
    elif flat.numel():
        with torch.no_grad():
            flat.copy_(read(checkpoint, name))
