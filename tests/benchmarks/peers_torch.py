"""The same work by torch: load a file, save it under another name, fsync."""

from __future__ import annotations

import torch

import ckptio
from measuring import fsync


def warm_up() -> None:
    """Nothing beyond the import."""


def make(source: str, target: str) -> None:
    """Write the peer's file: every tensor of ``source``, tied names sharing a storage."""
    tensors = {name: torch.from_numpy(array) for name, array in ckptio.load(source).items()}
    torch.save(tensors, target)


def load_and_save(source: str, target: str) -> None:
    torch.save(torch.load(source, weights_only=True), target)
    fsync(target)


def load_transpose_and_save(source: str, target: str) -> None:
    """The same with the weights that transformers' ``Conv1D`` keeps as (in, out)."""
    tensors = torch.load(source, weights_only=True)
    for name, tensor in tensors.items():
        if ".c_" in name and tensor.ndim == 2:
            tensors[name] = tensor.t().contiguous()
    torch.save(tensors, target)
    fsync(target)
