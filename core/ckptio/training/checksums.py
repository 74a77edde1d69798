"""The CRC-32 of a file while it is being written: a second thread reads what is there already.

What is read back comes from the kernel's memory, so it costs no disk, and it is what the file has rather
than what was meant. The thread works while the writer waits for the disk.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ckptio.crc import shifted_crc32
from ckptio.output import Output
from ckptio.output_file import OutputFile, Report

__all__ = ["ChecksummedOutput", "file_crc32"]

_PIECE = 1 << 20
_BESIDE = 4 << 20
"""Bytes of a file from which on a second thread is worth it."""

Found = Callable[[Path, int, int], None]
"""Told, for each finished file, the path that it will have, its size and its CRC-32."""


def file_crc32(path: Path) -> int:
    """Return the CRC-32 of a file."""
    crc = 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_PIECE):
            crc = zlib.crc32(data, crc)
    return crc


class ChecksummedOutput(Output):
    """An output that tells ``found`` the size and checksum of each of its files once it is on the disk."""

    def __init__(
        self, target: Path, *, found: Found, overwrite: bool = False, on_bytes: Report | None = None
    ) -> None:
        super().__init__(target, overwrite=overwrite, on_bytes=on_bytes)
        self._found = found

    def open_file(self, path: Path) -> OutputFile:
        place = self.target / path.relative_to(self.staging)
        return _ChecksummedFile(path, lambda size, crc: self._found(place, size, crc))


class _ChecksummedFile(OutputFile):
    """A file whose CRC-32 is known when it is finished."""

    def __init__(self, path: Path, finished: Callable[[int, int], None]) -> None:
        self._follower = _Follower(path)
        self._finished = finished
        self._closing = self._done = False
        super().__init__(path, self._follower.wrote)

    def patch(self, offset: int, data: bytes) -> None:
        with self._follower.paused():
            seen = self._follower.seen(offset, len(data))
            super().patch(offset, data)
            self._follower.replaced(offset, seen, data[: len(seen)])

    def finish(self) -> None:
        if self._done:
            return
        size, self._closing = self.tell(), True
        try:
            super().finish()
        except BaseException:
            self._follower.stop()
            raise
        self._done = True
        self._finished(size, self._follower.result(size))

    def close(self) -> None:
        super().close()
        if not self._closing:
            self._follower.stop()


class _Follower:
    """Reads a growing file behind its writer, who may still patch what was read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = self._position = self._crc = 0
        self._changes: list[tuple[int, int]] = []
        self._thread: threading.Thread | None = None
        self._wake, self._free, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._free.set()
        self._ended = self._stopped = False
        self._error: OSError | None = None

    def wrote(self, count: int) -> None:
        """Take note of ``count`` more bytes in the file; returns at once."""
        self._written += count
        if self._thread is None and self._written >= _BESIDE:
            self._thread = threading.Thread(target=self._run, name="ckptio-checksum", daemon=True)
            self._thread.start()
        self._wake.set()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let nothing be read inside the ``with``."""
        self._free.clear()
        try:
            with self._lock:
                yield
        finally:
            self._free.set()

    def seen(self, offset: int, size: int) -> bytes:
        """Return what was read already of ``size`` bytes from ``offset``; while paused."""
        count = min(self._position - offset, size)
        if count <= 0:
            return b""
        with open(self._path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), count, offset)

    def replaced(self, offset: int, old: bytes, new: bytes) -> None:
        """Take note that bytes which were read are others now."""
        if old:
            self._changes.append((offset + len(old), zlib.crc32(old) ^ zlib.crc32(new)))

    def result(self, size: int) -> int:
        """Return the CRC-32 of the finished file of ``size`` bytes, once the rest of it is read."""
        if self._thread is None:
            return file_crc32(self._path)
        self._ended = True
        self._wake.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._position == size
        crc = self._crc
        for end, change in self._changes:
            crc ^= shifted_crc32(change, size - end)
        return crc

    def stop(self) -> None:
        """End without a result."""
        self._stopped = True
        self._free.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with open(self._path, "rb", buffering=0) as file:
                buffer = memoryview(bytearray(_PIECE))
                while self._wait():
                    self._free.wait()
                    with self._lock:
                        piece = buffer[: min(_PIECE, self._written - self._position)]
                        count = os.preadv(file.fileno(), [piece], self._position)
                        if count == 0:
                            raise OSError(5, "The file became shorter while it was written", str(self._path))
                        self._crc = zlib.crc32(piece[:count], self._crc)
                        self._position += count
        except OSError as error:
            self._error = error

    def _wait(self) -> bool:
        """Wait until there is more to read; False when there never will be."""
        while self._position == self._written and not self._ended and not self._stopped:
            self._wake.wait()
            self._wake.clear()
        return self._position < self._written and not self._stopped
