"""The same work by the safetensors library: load a file, save it under another name, fsync."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import load_file, save_file

import ckptio
from measuring import fsync


def warm_up() -> None:
    """Nothing beyond the import."""


def make(source: str, target: str) -> None:
    """Write the peer's file: every tensor of ``source`` once, as the library wants it."""
    with ckptio.open(source) as checkpoint:
        save_file({name: checkpoint.read(name) for name in checkpoint.specs}, target)


def load_and_save(source: str, target: str) -> None:
    save_file(load_file(source), target)
    fsync(target)


def load_transpose_and_save(source: str, target: str) -> None:
    """The same with the weights that transformers' ``Conv1D`` keeps as (in, out)."""
    tensors = load_file(source)
    for name, tensor in tensors.items():
        if ".c_" in name and tensor.ndim == 2:
            tensors[name] = np.ascontiguousarray(tensor.T)
    save_file(tensors, target)
    fsync(target)
