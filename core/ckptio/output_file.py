"""One file being written: small pieces gathered, long ones copied by whichever way the kernel has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ckptio.checkpoint import CHUNK_BYTES, Span
from ckptio.writeback import Writeback

__all__ = ["OutputFile", "Report"]

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
        self._writeback = Writeback(self._fd)

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
        """Write what is pending, force it to the disk and close; a second time does nothing.

        A writer of many files calls it after each: they are not all open at once then.
        """
        if self._fd < 0:
            return
        self._flush()
        self._writeback.end()
        self._writeback.check()
        os.fsync(self._fd)
        self.close()

    def close(self) -> None:
        """Close the file as it is; nothing more is forced to the disk."""
        self._writeback.end()
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
        self._writeback.wrote(count)
        if self._on_bytes is not None:
            self._on_bytes(count)


def _write_all(fd: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(fd, data) :]


def _copy_file_range(source: int, target: int, offset: int, count: int) -> int:
    return os.copy_file_range(source, target, count, offset)


def _sendfile(source: int, target: int, offset: int, count: int) -> int:
    return os.sendfile(target, source, offset, count)


_NOT_HERE = {1, 18, 22, 38, 95}
"""EPERM, EXDEV, EINVAL, ENOSYS, EOPNOTSUPP: this way of copying does not exist here."""
