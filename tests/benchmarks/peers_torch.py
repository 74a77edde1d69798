"""The same work by torch: load a file, save it under another name, fsync."""

from __future__ import annotations

import os

import torch


def warm_up() -> None:
    """Nothing beyond the import."""


def load_and_save(source: str, target: str) -> None:
    torch.save(torch.load(source, weights_only=True), target)
    fd = os.open(target, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
