"""The same work by torch: load a file, save it under another name, fsync."""

from __future__ import annotations

import os

import torch

import ckptio


def warm_up() -> None:
    """Nothing beyond the import."""


def make(source: str, target: str) -> None:
    """Write the peer's file: every tensor of ``source``, tied names sharing a storage."""
    tensors = {name: torch.from_numpy(array) for name, array in ckptio.load(source).items()}
    torch.save(tensors, target)


def load_and_save(source: str, target: str) -> None:
    torch.save(torch.load(source, weights_only=True), target)
    fd = os.open(target, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
