"""Hidden directories in which steps are written, and what a killed process leaves of them.

A living writer holds a lock on its directory, which ends with the process, however that ends. So what is
not locked is left over. A minute's grace covers the moment between making a directory and locking it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from ckptio.training.notes import Notes

__all__ = ["hidden_name", "leftovers", "locked_directory", "remove_leftovers"]

_NAME = re.compile(r"\.checkpoint_(step_[0-9]+|final)-[0-9a-f]{16}\.tmp")
_GRACE = 60.0
"""Seconds."""


def hidden_name(target: Path) -> Path:
    """Return a fresh hidden name beside the step directory ``target``."""
    return target.with_name(f".{target.name}-{secrets.token_hex(8)}.tmp")


@contextlib.contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Make a directory that counts as in use inside the ``with``; what is still there at its end goes."""
    path.mkdir()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock(fd)
            yield
        finally:
            os.close(fd)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def leftovers(directory: Path) -> list[Path]:
    """Return the hidden directories of steps that are not finished, still in use or not."""
    if not directory.is_dir():
        return []
    names = sorted(name for name in os.listdir(directory) if _NAME.fullmatch(name))
    return [directory / name for name in names if not (directory / name).is_symlink()]


def remove_leftovers(directory: Path, say: Notes) -> None:
    """Remove those that no process works on any more, and nothing that is not ours."""
    for path in leftovers(directory):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # its writer has just finished
        try:
            if time.time() - os.fstat(fd).st_mtime > _GRACE and _lock(fd):
                shutil.rmtree(path, ignore_errors=True)
                say(f"{path}: removed: it was left over from a process that did not finish it")
        finally:
            os.close(fd)


def _lock(fd: int) -> bool:
    """Take the lock if it is free; a file system without locks has none that are."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
