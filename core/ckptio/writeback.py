"""Sending written data to the disk while more is being written.

Left alone, the kernel keeps gigabytes of written data in memory, and the fsync at the end waits for all
of it. A second thread that syncs as it goes lets the disk work while the next tensors are copied.
"""

from __future__ import annotations

import os
import threading

__all__ = ["Writeback"]

_EVERY = 64 << 20
"""Bytes between two syncs: a file smaller than this never starts the thread."""


class Writeback:
    """Syncs one open file in a thread of its own, each time `wrote` has heard of 64 MiB more."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._ended = False
        self._since = 0
        self._error: OSError | None = None

    def wrote(self, count: int) -> None:
        """Take note of ``count`` more bytes; returns at once."""
        self._since += count
        if self._since < _EVERY:
            return
        self._since = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ckptio-writeback", daemon=True)
            self._thread.start()
        self._wake.set()

    def end(self) -> None:
        """Stop, and wait for a sync in progress: after that the file may be closed."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def check(self) -> None:
        """Raise what a sync has met; the kernel tells of a failed write once, not again at fsync."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._ended or self._error is not None:
                return
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._error = error
