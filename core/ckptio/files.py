"""Sources: open files that are read by position and within bounds, and checkpoints over them."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptio.checkpoint import CHUNK_BYTES, Span, TensorSpec
from ckptio.described import DescribedCheckpoint
from ckptio.errors import (
    ChangedCheckpointError,
    CheckpointError,
    CorruptCheckpointError,
    UnsupportedError,
)
from ckptio.limits import current_limits

__all__ = ["Cursor", "FileCheckpoint", "SourceFile", "open_source", "read_chunks", "read_whole"]

_WINDOW = 64 << 10


class SourceFile:
    """A regular file, open for positional reads; it never moves a shared position.

    Raises OSError when the file cannot be opened, and `UnsupportedError` for a pipe or a device.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            info = os.fstat(self._fd)
            if stat.S_ISDIR(info.st_mode):
                raise IsADirectoryError(21, "Is a directory", str(self.path))
            if not stat.S_ISREG(info.st_mode):
                raise UnsupportedError(f"{self.path}: not a regular file")
        except BaseException:
            self.close()
            raise
        self._identity = _identity(info)
        self.size = info.st_size

    def fileno(self) -> int:
        if self._fd < 0:
            raise ValueError(f"{self.path}: the checkpoint is closed")
        return self._fd

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly ``size`` bytes from ``offset``; `CheckpointError` when there are fewer."""
        if size > self.size - offset:
            raise self.cut_short(offset, size)
        data = os.pread(self.fileno(), size, offset)
        if len(data) == size:
            return data
        whole = bytearray(size)
        self.read_into(memoryview(whole), offset)
        return bytes(whole)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from ``offset``; `CheckpointError` when the file ends before."""
        done = 0
        while done < len(buffer):
            count = os.preadv(self.fileno(), [buffer[done:]], offset + done)
            if count == 0:
                raise self.cut_short(offset + done, len(buffer) - done)
            done += count

    def cut_short(self, offset: int, size: int) -> CheckpointError:
        """Return the error of a read past the end: the file was always too short, or was cut meanwhile."""
        now = os.fstat(self.fileno()).st_size
        if now < self.size:
            return ChangedCheckpointError(
                "the file was cut while it was being read", path=self.path, offset=offset
            )
        left = max(0, now - offset)
        return CorruptCheckpointError(
            f"the file ends too early: {size} bytes expected, {left} left", path=self.path, offset=offset
        )

    def check_unchanged(self) -> None:
        """Raise `ChangedCheckpointError` when size, time or place differ from those at opening."""
        if _identity(os.fstat(self.fileno())) != self._identity:
            raise ChangedCheckpointError(
                "the file was rewritten while it was being read; nothing was published", path=self.path
            )

    def is_at(self, path: Path) -> bool:
        """Return whether ``path``, which exists, is this very file."""
        return os.path.samestat(os.fstat(self.fileno()), path.stat())

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            warnings.warn(f"unclosed checkpoint {self.path}", ResourceWarning, source=self, stacklevel=2)
            self.close()


def _identity(info: os.stat_result) -> tuple[int, int, int, int]:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


@contextlib.contextmanager
def open_source(path: str | os.PathLike[str]) -> Iterator[SourceFile]:
    """Open a file for a reader: closed again when the ``with`` fails, left open when it succeeds."""
    file = SourceFile(path)
    try:
        yield file
    except BaseException:
        file.close()
        raise


def read_whole(path: Path, what: str) -> bytes:
    """Return all of a small file, ``what`` it is being a word for an error.

    Raises OSError, `UnsupportedError` for a pipe or a device, and `CorruptCheckpointError` for a file above
    the limit of headers.
    """
    limit = current_limits().header_bytes
    with contextlib.closing(SourceFile(path)) as file:
        if file.size > limit:
            raise CorruptCheckpointError(f"more than {limit} bytes: no {what}", path=path)
        return file.read_at(0, file.size)


class Cursor:
    """Parse a header front to back, in bounds: nothing is read that the file does not have."""

    def __init__(self, file: SourceFile, offset: int = 0) -> None:
        self.file = file
        self.offset = offset
        self._limit = current_limits().header_bytes
        self._read = 0
        self._window = b""
        self._start = offset

    @property
    def left(self) -> int:
        """The bytes from here to the end of the file."""
        return self.file.size - self.offset

    def take(self, size: int, what: str) -> bytes:
        """Return the next ``size`` bytes, which are (part of) ``what``."""
        if size > self.left:
            raise self.error(f"the file ends inside {what}: {size} bytes expected, {self.left} left")
        self._read += size
        if self._read > self._limit:
            raise self.error(f"the header is larger than {self._limit} bytes")
        begin = self.offset - self._start
        if begin < 0 or begin + size > len(self._window):
            self._start, begin = self.offset, 0
            self._window = self.file.read_at(self.offset, max(size, min(_WINDOW, self.left)))
        self.offset += size
        return self._window[begin : begin + size]

    def unpack(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        """Return the next values of ``layout``, which are (part of) ``what``."""
        return layout.unpack(self.take(layout.size, what))

    def skip(self, size: int, what: str) -> None:
        """Go past ``size`` bytes of payload without reading them."""
        if size > self.left:
            raise self.error(f"the file ends inside {what}: {size} bytes expected, {self.left} left")
        self.offset += size

    def error(self, what: str, offset: int | None = None) -> CorruptCheckpointError:
        """Return an error that says where: here, or at ``offset``."""
        return CorruptCheckpointError(
            what, path=self.file.path, offset=self.offset if offset is None else offset
        )


class FileCheckpoint(DescribedCheckpoint):
    """The checkpoint of a format whose tensors are each one piece of one open file.

    ``offsets`` gives the first byte of each tensor of ``specs``. The file is owned: `close` closes it.
    """

    def __init__(
        self,
        file: SourceFile,
        specs: Mapping[str, TensorSpec],
        offsets: Mapping[str, int],
        *,
        aliases: Mapping[str, str] | None = None,
        leaves: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(specs, aliases=aliases, leaves=leaves, metadata=metadata)
        self.file = file
        self._offsets = offsets

    def spans(self, name: str) -> Sequence[Span]:
        return (Span(self.file, self._offsets[name], self._specs[name].nbytes),)

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        return read_chunks(self.spans(name), max_bytes, self._specs[name].dtype.itemsize)

    def check_unchanged(self) -> None:
        self.file.check_unchanged()

    def close(self) -> None:
        self.file.close()


def read_chunks(spans: Sequence[Span], max_bytes: int, itemsize: int) -> Iterator[memoryview]:
    """Yield the bytes of ``spans`` by positional reads, in chunks of whole elements."""
    step = max(1, max_bytes // itemsize) * itemsize
    pending = b""
    for span in spans:
        position, end = span.offset, span.offset + span.length
        while position < end:
            count = min(step - len(pending), end - position)
            data = span.file.read_at(position, count)
            position += count
            pending = pending + data if pending else data
            # A span may end inside an element; the rest of it opens the next span.
            if len(pending) == step or (position == end and len(pending) % itemsize == 0):
                yield memoryview(pending)
                pending = b""
