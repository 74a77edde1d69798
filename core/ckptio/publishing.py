"""How what was written gets its name: in one step, durably, and never over what it does not replace."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

__all__ = [
    "Moves",
    "exchange",
    "fsync_directory",
    "publish_new",
    "temporary_sibling",
]


def temporary_sibling(target: Path) -> Path:
    """Return a fresh hidden name in the directory of ``target``."""
    return target.with_name(f".ckptio-{secrets.token_hex(8)}.tmp")


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two files or directories in one step; False where the system cannot.

    Raises OSError, FileNotFoundError when one of them is not there.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(other))


_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux's <fcntl.h> and <linux/fs.h>."""


def publish_new(staging: Path, target: Path, *, overwrite: bool) -> None:
    """Rename a file, or a new directory; without ``overwrite`` never over what another process published."""
    if overwrite:
        os.rename(staging, target)
        return
    try:
        if staging.is_dir() or not _linked(staging, target):
            if os.path.lexists(target):
                raise FileExistsError
            os.rename(staging, target)
    except (FileExistsError, NotADirectoryError):
        raise FileExistsError(
            17, "The target appeared meanwhile; --overwrite (overwrite=True) replaces it", str(target)
        ) from None


class Moves:
    """Names that change between a directory ``staging`` in a directory ``target`` and that one itself.

    They can be taken back, all together. Each step is noted before it is done: an interrupt may come after.
    """

    def __init__(self, staging: Path, target: Path) -> None:
        self._staging, self._target = staging, target
        self._away = temporary_sibling(staging / "old")
        self._undo: list[Callable[[], object]] = []
        self._renamed: set[str] = set()

    def add(self, name: str) -> None:
        """Give a new file or directory its name, which must be free."""
        source, target = self._staging / name, self._target / name
        self._undo.append(lambda: _take_back(source, target))
        publish_new(source, target, overwrite=False)

    def replace(self, name: str) -> None:
        """Put a file in the place of the one of this name, in one step; where there is none, add it."""
        source, target = self._staging / name, self._target / name
        if not os.path.lexists(target):
            self.add(name)
            return
        new = source.stat()
        self._undo.append(lambda: _swap_back(source, target, new))
        if not exchange(source, target):
            self._undo.pop()
            self._renamed.add(name)
            os.rename(source, target)

    def remove(self, name: str) -> None:
        """Move an old file away, to where it goes with ``staging``."""
        source, target = self._away / name, self._target / name
        if os.path.lexists(target):
            self._away.mkdir(exist_ok=True)
            self._undo.append(lambda: _put_back(source, target))
            os.rename(target, source)

    def is_final(self, name: str) -> bool:
        """Return whether the file has replaced another for good: the system has no exchange."""
        return name in self._renamed and not os.path.lexists(self._staging / name)

    def take_back(self) -> None:
        """Restore the old files and remove the new ones."""
        while self._undo:
            self._undo.pop()()


def _put_back(away: Path, target: Path) -> None:
    if os.path.lexists(away):
        os.rename(away, target)


def _swap_back(staging: Path, target: Path, new: os.stat_result) -> None:
    """Exchange two files again, if the one that is ``new`` has the name."""
    if os.path.samestat(target.stat(), new):
        exchange(staging, target)


def _take_back(staging: Path, target: Path) -> None:
    """Remove ``target`` if it is what was staged: moved there, or linked and not yet moved."""
    if not target.exists() or (staging.exists() and not staging.samefile(target)):
        return
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()


def _linked(staging: Path, target: Path) -> bool:
    """Give a file its name without replacing one that another process published; False without links."""
    try:
        os.link(staging, target)
    except FileExistsError:
        raise
    except OSError:
        return False
    staging.unlink()
    return True
