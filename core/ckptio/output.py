"""Targets: files that a writer fills and that appear whole, under their name, or not at all.

Every file is written beside its target under a hidden name, fsynced and renamed, and then its
directory is fsynced (a rename alone is not durable). Whatever goes wrong before the rename, an
interrupt included, removes what was begun and leaves the old target as it was.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from ckptio.checkpoint import CHUNK_BYTES, Span
from ckptio.errors import OptionError

__all__ = ["Output", "OutputFile", "check_target", "fsync_directory", "temporary_sibling", "write_file"]

_BUFFER = 1 << 20
_SLICE = 32 << 20
"""Bytes per kernel copy: small enough that progress moves and Ctrl-C is heard."""

Report = Callable[[int], None]


class OutputFile:
    """One file being written front to back; a writer calls `write`, `zeros` and `copy`."""

    def __init__(self, path: Path, on_bytes: Report | None = None) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._pending = bytearray()
        self._written = 0
        self._on_bytes = on_bytes
        self._kernel_copies = [_copy_file_range, _sendfile]

    def tell(self) -> int:
        """Return how many bytes the file has so far."""
        return self._written + len(self._pending)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes; small pieces are gathered."""
        if len(self._pending) + len(data) <= _BUFFER:
            self._pending += data
            return
        self._flush()
        if len(data) < _BUFFER:
            self._pending += data
        else:
            self._write_through(memoryview(data))

    def zeros(self, count: int) -> None:
        """Append ``count`` zero bytes."""
        block = bytes(min(count, _BUFFER))
        while count > 0:
            self.write(block[:count])
            count -= len(block)

    def copy(self, span: Span) -> None:
        """Append a piece of an open file, by the kernel where it can: the bytes stay out of Python."""
        if span.length < _BUFFER // 16:
            self.write(span.file.read_at(span.offset, span.length))
            return
        self._flush()
        position, left = span.offset, span.length
        while left:
            count = self._copy_slice(span, position, min(left, _SLICE))
            self._advance(count)
            position, left = position + count, left - count

    def patch(self, offset: int, data: bytes) -> None:
        """Replace bytes that the file already has; ValueError where it has none."""
        if not 0 <= offset <= self.tell() - len(data):
            raise ValueError(f"{len(data)} bytes at {offset} are not among the {self.tell()} written")
        if offset >= self._written:
            begin = offset - self._written
            self._pending[begin : begin + len(data)] = data
            return
        self._flush()
        while data:
            count = os.pwrite(self._fd, data, offset)
            offset, data = offset + count, data[count:]

    def finish(self) -> None:
        """Write what is pending, force it to the disk and close."""
        self._flush()
        os.fsync(self._fd)
        self.close()

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _copy_slice(self, span: Span, position: int, count: int) -> int:
        while self._kernel_copies:
            try:
                done = self._kernel_copies[0](span.file.fileno(), self._fd, position, count)
            except OSError as error:
                # Not between these two file systems, or not on this one: the next way, from now on.
                if error.errno not in _NOT_HERE:
                    raise
                del self._kernel_copies[0]
                continue
            if done:
                return done
            # The end of the source; but some file systems say so of every such copy.
            del self._kernel_copies[0]
        data = span.file.read_at(position, min(count, CHUNK_BYTES))
        _write_all(self._fd, memoryview(data))
        return len(data)

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, bytearray()
            self._write_through(memoryview(pending))

    def _write_through(self, data: memoryview) -> None:
        _write_all(self._fd, data)
        self._advance(len(data))

    def _advance(self, count: int) -> None:
        self._written += count
        if self._on_bytes is not None:
            self._on_bytes(count)


class Output:
    """What a writer gets: the place for its one file, or for the files of a new directory.

    Used as a context manager: leaving it normally publishes, leaving it by any exception removes
    everything that was begun. ``final_name`` is the name that the target will have.
    """

    def __init__(self, target: Path, *, overwrite: bool = False, on_bytes: Report | None = None) -> None:
        self.target = target
        self.final_name = target.name
        self._overwrite = overwrite
        self._on_bytes = on_bytes
        self.staging = temporary_sibling(target)
        self.published = False
        self._files: dict[str | None, OutputFile] = {}

    def create(self, relative: str | None = None) -> OutputFile:
        """Open the target's one file, or, with ``relative`` names, files of a directory."""
        if relative in self._files or (self._files and (relative is None) != (None in self._files)):
            raise ValueError(f"{self.final_name}: one file, or a directory of files of different names")
        if relative is None:
            path = self.staging
        else:
            inside = PurePosixPath(relative)
            if not inside.parts or inside.is_absolute() or ".." in inside.parts or "\0" in relative:
                raise ValueError(f"{relative!r} is outside of the target directory")
            path = self.staging / inside
            path.parent.mkdir(parents=True, exist_ok=True)
        file = self._files[relative] = OutputFile(path, self._on_bytes)
        return file

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
        _rename(self.staging, self.target, overwrite=self._overwrite)
        self.published = True
        fsync_directory(self.target.parent)

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
        self.discard()


def check_target(target: Path, *, overwrite: bool) -> None:
    """Refuse a target that could not be published, before any work: OSError or `OptionError`."""
    parent = target.parent
    if not target.name:
        raise OptionError(f"{target}: not the name of a file")
    if not parent.exists():
        raise FileNotFoundError(2, "No such directory to write into", str(parent))
    if not parent.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(parent))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(13, "No permission to write into the directory", str(parent))
    if target.is_dir():
        raise IsADirectoryError(21, "The target is a directory; name a file in it", str(target))
    if target.exists() and not target.is_file():
        raise OptionError(f"{target}: not a regular file")
    if os.path.lexists(target) and not overwrite:
        raise FileExistsError(17, "The target exists; --overwrite (overwrite=True) replaces it", str(target))


def temporary_sibling(target: Path) -> Path:
    """Return a fresh hidden name in the directory of ``target``."""
    return target.with_name(f".ckptio-{secrets.token_hex(8)}.tmp")


def write_file(target: Path, data: bytes, *, overwrite: bool) -> None:
    """Write a small file as every output is written: hidden, fsynced, renamed."""
    with Output(target, overwrite=overwrite) as output:
        output.create().write(data)
        output.finish()
        output.publish()


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _rename(staging: Path, target: Path, *, overwrite: bool) -> None:
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


def _write_all(fd: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(fd, data) :]


def _copy_file_range(source: int, target: int, offset: int, count: int) -> int:
    return os.copy_file_range(source, target, count, offset)


def _sendfile(source: int, target: int, offset: int, count: int) -> int:
    return os.sendfile(target, source, offset, count)


_NOT_HERE = {1, 18, 22, 38, 95}
"""EPERM, EXDEV, EINVAL, ENOSYS, EOPNOTSUPP: this way of copying does not exist here."""
