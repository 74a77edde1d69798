"""A deflate stream inside a file, inflated front to back within the memory of what is asked for."""

from __future__ import annotations

import zlib

from ckptio.errors import CorruptCheckpointError
from ckptio.files import SourceFile

__all__ = ["Inflater"]

_BLOCK = 64 << 10


class Inflater:
    """The raw deflate stream of ``size`` bytes from ``offset``, which is that of ``what``.

    Raises `CorruptCheckpointError` for a stream that is damaged, or that has fewer bytes than are
    read (`read`) or more (`finish`).
    """

    def __init__(self, file: SourceFile, what: str, offset: int, size: int) -> None:
        self._file = file
        self._what = what
        self._offset = offset
        self._end = offset + size
        self._engine = zlib.decompressobj(-zlib.MAX_WBITS)
        self._input = b""

    def read(self, size: int) -> bytes:
        """Return exactly the next ``size`` bytes."""
        pieces: list[bytes] = []
        while size:
            data = self._next(size)
            if not data:
                raise self._error("has fewer bytes than it claims")
            pieces.append(data)
            size -= len(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def finish(self) -> None:
        """See that nothing is left, neither in the stream nor behind it."""
        if self._next(1) or not self._engine.eof or self._engine.unused_data or self._offset < self._end:
            raise self._error("has more bytes than it claims, or no end")

    def _next(self, most: int) -> bytes:
        """Return the next bytes, ``most`` at most; none at the end."""
        while not self._engine.eof:
            if not self._input:
                count = min(_BLOCK, self._end - self._offset)
                self._input = self._file.read_at(self._offset, count)
                self._offset += count
            exhausted = not self._input
            try:
                data = self._engine.decompress(self._input, most)
            except zlib.error as error:
                raise self._error(f"is damaged: {error}") from None
            self._input = self._engine.unconsumed_tail
            if data or exhausted:
                return data
        return b""

    def _error(self, what: str) -> CorruptCheckpointError:
        text = f"the compressed stream of {self._what} {what}"
        return CorruptCheckpointError(text, path=self._file.path, offset=self._offset)
