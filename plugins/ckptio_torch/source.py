"""What a pickle is read from, and how much memory what is read may take."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ckptio import CorruptCheckpointError

__all__ = ["Budget", "Bytes", "Reader"]

_ALLOWANCE = 16 << 20
_PER_BYTE = 20


class Reader(Protocol):
    """Where a pickle is read from: a `ckptio.Cursor`, or `Bytes`."""

    offset: int

    def take(self, size: int, what: str) -> bytes: ...

    def error(self, what: str, offset: int | None = None) -> CorruptCheckpointError: ...


class Bytes:
    """A pickle in memory, whose first byte is that at ``start`` of the file ``path``."""

    def __init__(self, data: bytes, path: Path, start: int) -> None:
        self._data, self._path, self._start = data, path, start
        self.offset = start

    def take(self, size: int, what: str) -> bytes:
        at = self.offset - self._start
        if size > len(self._data) - at:
            left = len(self._data) - at
            raise self.error(f"the pickle ends inside {what}: {size} bytes expected, {left} left")
        self.offset += size
        return self._data[at : at + size]

    def error(self, what: str, offset: int | None = None) -> CorruptCheckpointError:
        at = self.offset if offset is None else offset
        return CorruptCheckpointError(what, path=self._path, offset=at)


class Budget:
    """Bounds the memory that records take by the bytes that were read for them."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._begin = reader.offset
        self._spent = 0

    def spend(self, size: int) -> None:
        """Count ``size`` bytes; `CorruptCheckpointError` when a file this small does not warrant them."""
        self._spent += size
        if self._spent > _ALLOWANCE and self._spent > _ALLOWANCE + _PER_BYTE * self.read:
            raise self._reader.error("the pickle unfolds to far more than its own size")

    @property
    def read(self) -> int:
        return self._reader.offset - self._begin
