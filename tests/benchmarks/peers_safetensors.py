"""The same work by the safetensors library: load a file, save it under another name, fsync."""

from __future__ import annotations

import os

from safetensors.numpy import load_file, save_file


def warm_up() -> None:
    """Nothing beyond the import."""


def load_and_save(source: str, target: str) -> None:
    save_file(load_file(source), target)
    fd = os.open(target, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
