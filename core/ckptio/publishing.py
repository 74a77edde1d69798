"""How what was written gets its name: in one step, durably, and never over what it does not replace."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

__all__ = [
    "exchange",
    "fsync_directory",
    "publish_into",
    "publish_new",
    "remove_replaced",
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


def publish_into(staging: Path, target: Path, names: Sequence[str], replacing: Collection[str] = ()) -> None:
    """Move what is in the directory ``staging`` into the existing directory ``target``, the last one last.

    The last may replace a file: it is what makes the others count (an index, say), so up to its rename the
    old set is whole, and from then on the new one. So may those that are ``replacing``, which change places
    with the old ones just before. When it fails, all is put back.
    """
    *first, last = names
    swapped: list[str] = []
    try:
        for name in sorted(first, key=lambda name: name in replacing):
            if name not in replacing or not (target / name).exists():
                publish_new(staging / name, target / name, overwrite=False)
            elif exchange(staging / name, target / name):
                swapped.append(name)
            else:
                os.rename(staging / name, target / name)
        fsync_directory(target)
        os.rename(staging / last, target / last)
    except BaseException:
        if (staging / last).exists():
            for name in swapped:
                exchange(staging / name, target / name)
            for name in first:
                _take_back(staging / name, target / name)
        raise


def remove_replaced(target: Path, names: Iterable[str]) -> None:
    """Remove the files of the old set from the directory ``target``, in this order."""
    for name in names:
        (target / name).unlink(missing_ok=True)


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
