"""The jobs of `bench_save`: the state of a model and AdamW, saved and resumed in every way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ckptio.training import CheckpointOptions, TrainerState, resume_checkpoint, save_checkpoint

_SHAPE = (1024, 4096)
_BYTES = 4 * _SHAPE[0] * _SHAPE[1]


class Weights(nn.Module):
    """So many matrices of 16 MiB."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(_SHAPE)) for _ in range(count))


_model: nn.Module = Weights(1)
_optimizer: torch.optim.Optimizer = torch.optim.AdamW(_model.parameters())


def warm_up() -> None:
    """Nothing beyond the imports; `prepare` does the rest."""


def prepare(gib: float, folder: str) -> None:
    """Make a state of so many GiB, a third of it the model; save and resume once in each way."""
    global _model, _optimizer
    _make(1)
    for first, then in ((save_torch, load_torch), (save_dcp, load_dcp)):
        first(f"{folder}/warm_{first.__name__}")
        then(f"{folder}/warm_{first.__name__}")
    save_ckptio(f"{folder}/warm", "statedict")
    resume_ckptio(f"{folder}/warm")
    _make(max(1, round(gib * 2**30 / 3 / _BYTES)))


def _make(count: int) -> None:
    global _model, _optimizer
    torch.manual_seed(0)
    _model = Weights(count)
    _optimizer = torch.optim.AdamW(_model.parameters())
    for parameter in _model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    _optimizer.step()
    _optimizer.zero_grad()


def rest() -> None:
    """Do nothing: its peak is the memory of the state itself."""


def write_plainly(path: str) -> None:
    """Write the bytes of all tensors, then fsync: what saving cannot be faster than."""
    with open(path, "wb", buffering=0) as file:
        for tensor in _tensors():
            left = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
            while left:
                left = left[file.write(left) :]
        os.fsync(file.fileno())


def _tensors() -> Iterator[torch.Tensor]:
    yield from _model.parameters()
    for slots in _optimizer.state.values():
        yield from slots.values()


def save_ckptio(folder: str, checkpoint_format: str) -> None:
    Path(folder).mkdir(exist_ok=True)
    options = CheckpointOptions(Path(folder), 1, checkpoint_format=checkpoint_format)
    save_checkpoint(options, TrainerState(global_step=1), _model, _optimizer)


def resume_ckptio(folder: str) -> None:
    resume_checkpoint(CheckpointOptions(resume_from=folder), _model, _optimizer, notes=lambda note: None)


def save_torch(path: str) -> None:
    with open(path, "wb") as file:
        torch.save({"model": _model.state_dict(), "optimizer": _optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def load_torch(path: str) -> None:
    state: Any = torch.load(path, weights_only=True, mmap=False)
    _model.load_state_dict(state["model"])
    _optimizer.load_state_dict(state["optimizer"])


def save_dcp(folder: str) -> None:
    """Save with torch.distributed.checkpoint, whose writer fsyncs its files itself."""
    model, optimizer = get_state_dict(_model, _optimizer)
    save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)


def load_dcp(folder: str) -> None:
    model, optimizer = get_state_dict(_model, _optimizer)
    load({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
    set_state_dict(_model, _optimizer, model_state_dict=model, optim_state_dict=optimizer)
