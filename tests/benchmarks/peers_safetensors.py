"""The same work by the safetensors library: load a file, save it under another name, fsync."""

from __future__ import annotations

import os

from safetensors.numpy import load_file, save_file

import ckptio


def warm_up() -> None:
    """Nothing beyond the import."""


def make(source: str, target: str) -> None:
    """Write the peer's file: every tensor of ``source`` once, as the library wants it."""
    with ckptio.open(source) as checkpoint:
        save_file({name: checkpoint.read(name) for name in checkpoint.specs}, target)


def load_and_save(source: str, target: str) -> None:
    save_file(load_file(source), target)
    fd = os.open(target, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
