"""Targets: files that a writer fills and that appear whole, under their name, or not at all.

Every file is written beside its target under a hidden name, fsynced and renamed, and then its
directory is fsynced (a rename alone is not durable). Whatever goes wrong before the rename, an
interrupt included, removes what was begun and leaves the old target as it was.

A directory appears whole by one rename. In one that exists (``overwrite``), the new files get names
that are free, the last of them makes the set count, and only then the old set goes. Whatever fails on
the way, all of the old set is put back.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from ckptio.errors import OptionError
from ckptio.output_file import OutputFile, Report
from ckptio.publishing import Moves, fsync_directory, publish_new, temporary_sibling

__all__ = ["Output", "OutputFile", "check_target", "fsync_directory", "temporary_sibling", "write_file"]


_FULL = {errno.EFBIG, errno.ENOSPC, errno.EDQUOT}


class Output:
    """What a writer gets: the place for its one file, or for the files of a directory.

    Used as a context manager: leaving it removes everything that was begun and not published.
    ``final_name`` is the name that the target will have. ``existing`` has the names that stand in the
    target where that is a directory already, and is empty otherwise.
    """

    def __init__(self, target: Path, *, overwrite: bool = False, on_bytes: Report | None = None) -> None:
        self.target = target
        self.final_name = target.name
        self._overwrite = overwrite
        self._on_bytes = on_bytes
        self._into = overwrite and target.is_dir()
        self.existing = frozenset(os.listdir(target)) if self._into else frozenset()
        # The directory may be another file system than its parent's.
        self.staging = temporary_sibling(target / "inside" if self._into else target)
        self.published = False
        self._files: dict[str | None, OutputFile] = {}
        self._replaced: tuple[str, ...] = ()

    def replace(self, names: Iterable[str]) -> None:
        """Name files of the old set in an existing directory, its index first: they go at the end.

        Nothing else in the directory is touched, and no directory in it, whatever its name.
        """
        self._replaced += tuple(
            name for name in names if name in self.existing and not (self.target / name).is_dir()
        )

    def create(self, relative: str | None = None) -> OutputFile:
        """Open the target's one file, or, with ``relative`` names, files of a directory.

        The file created last is published last. Raises OSError for a name that is taken.
        """
        if relative in self._files or (self._files and (relative is None) != (None in self._files)):
            raise ValueError(f"{self.final_name}: one file, or a directory of files of different names")
        path = self.staging if relative is None else self.staging / self._inside(relative)
        if relative is None and self._into:
            raise IsADirectoryError(21, "The target is a directory; name a file in it", str(self.target))
        if relative is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        file = self._files[relative] = self.open_file(path)
        return file

    def open_file(self, path: Path) -> OutputFile:
        """Open one file to be written; a subclass may watch what goes into it."""
        return OutputFile(path, self._on_bytes)

    def _inside(self, relative: str) -> PurePosixPath:
        """Return the path of a file inside of the target directory, where it can be."""
        inside = PurePosixPath(relative)
        if not inside.parts or inside.is_absolute() or ".." in inside.parts or "\0" in relative:
            raise ValueError(f"{relative!r} is outside of the target directory")
        if self._overwrite and not self._into and os.path.lexists(self.target):
            raise NotADirectoryError(
                20, "The target is a file, but this makes a directory; name another", str(self.target)
            )
        first = inside.parts[0]
        if first in self.existing and (first not in self._replaced or len(inside.parts) > 1):
            raise FileExistsError(
                17, f"{first} is in the way; move it or name another directory", str(self.target)
            )
        return inside

    def finish(self) -> None:
        """Force all files to the disk, still under the hidden name."""
        for file in self._files.values():
            file.finish()
        if None not in self._files:
            self.staging.mkdir(exist_ok=True)
            for directory, _, _ in os.walk(self.staging):
                fsync_directory(Path(directory))

    def publish(self) -> None:
        """Give the finished output its name, in one step, and make that durable."""
        if self._into and self._files:
            self._publish_into()
            return
        publish_new(self.staging, self.target, overwrite=self._overwrite)
        self.published = True
        fsync_directory(self.target.parent)

    def _publish_into(self) -> None:
        # Whole entries of the directory, each in the place of its file that was created last.
        tops = [PurePosixPath(name).parts[0] for name in reversed(self._files) if name is not None]
        *first, last = reversed(dict.fromkeys(tops))
        moves = Moves(self.staging, self.target)
        try:
            for name in sorted(first, key=lambda name: name in self._replaced):
                (moves.replace if name in self._replaced else moves.add)(name)
            fsync_directory(self.target)
            moves.replace(last)
            fsync_directory(self.target)
            for name in dict.fromkeys(self._replaced):
                if name not in tops:
                    moves.remove(name)
        except BaseException:
            self.published = moves.is_final(last)
            if not self.published:
                moves.take_back()
            raise
        self.published = True
        fsync_directory(self.target)

    def discard(self) -> None:
        """Remove everything that was begun."""
        for file in self._files.values():
            file.close()
        if self.staging.is_dir() and not self.staging.is_symlink():
            shutil.rmtree(self.staging, ignore_errors=True)
        else:
            self.staging.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc, OSError) and exc.errno in _FULL and exc.filename is None:
            # Writing to an open file does not say which it was.
            exc.filename = str(self.target)
        self.discard()


def check_target(target: Path, *, overwrite: bool, directory: bool = False) -> None:
    """Refuse a target that could not be published, before any work: OSError or `OptionError`.

    ``directory`` says that the format can write one.
    """
    parent = target.parent
    if not target.name:
        raise OptionError(f"{target}: not the name of a file")
    if not parent.exists():
        raise FileNotFoundError(2, "No such directory to write into", str(parent))
    if not parent.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(parent))
    place = target if target.is_dir() else parent
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(13, "No permission to write into the directory", str(place))
    if target.is_dir() and not directory:
        raise IsADirectoryError(21, "The target is a directory; name a file in it", str(target))
    if target.exists() and not target.is_file() and not target.is_dir():
        raise OptionError(f"{target}: not a regular file")
    if os.path.lexists(target) and not overwrite:
        raise FileExistsError(17, "The target exists; --overwrite (overwrite=True) replaces it", str(target))


def write_file(target: Path, data: bytes, *, overwrite: bool) -> None:
    """Write a small file as every output is written: hidden, fsynced, renamed."""
    with Output(target, overwrite=overwrite) as output:
        output.create().write(data)
        output.finish()
        output.publish()
