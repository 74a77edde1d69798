"""Writing zip archives whose entries are tensors: stored, aligned, copied by the kernel, with right CRCs."""

from __future__ import annotations

import struct
import threading
import zlib

from ckptio.archive.layout import (
    CENTRAL,
    CENTRAL_MAGIC,
    END,
    END64,
    END64_LOCATOR,
    END64_LOCATOR_MAGIC,
    END64_MAGIC,
    END_MAGIC,
    FIELD,
    LOCAL,
    LOCAL_MAGIC,
    MAX16,
    MAX32,
    STORED,
    UTF8,
    ZIP64_FIELD,
)
from ckptio.checkpoint import Checkpoint, Sink, Span
from ckptio.crc import shifted_crc32
from ckptio.errors import PluginError
from ckptio.output_file import OutputFile

__all__ = ["ZipWriter", "entry_name_problem"]

_WIDE, _MANY = MAX32, MAX16
"""From here on a size or offset, or a count, has no room in the records of before zip64."""
_DATE = 1 << 5 | 1
"""1980-01-01, the first day that zip knows: equal input gives equal bytes."""
_UNIX, _REGULAR_FILE = 3 << 8, 0o100644 << 16
_PADDING_FIELD = 0x4246
"""The extra field in which PyTorch's own writer has its padding, "FB"."""
_CRC_AT = 14
"""Where the CRC stands in a local header."""
_BESIDE = 1 << 20
"""Bytes of a piece of a file from which on a second thread is worth it."""


def entry_name_problem(name: str) -> str | None:
    """Return why no entry can have this name, or None when one can."""
    if not name or "\0" in name:
        return "an entry of a zip archive needs a name, without NUL"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "the name is not valid Unicode"
    return f"a name of {size} bytes; zip archives have room for {MAX16}" if size > MAX16 else None


class ZipWriter:
    """An archive that is written front to back into ``out``; `finish` writes its directory.

    Sizes are known before the data and stand in the headers; a CRC that is known only after it is
    put into its header then (no data descriptors, which not every reader takes).
    """

    def __init__(self, out: OutputFile) -> None:
        self._out = out
        self._names: set[str] = set()
        self._directory: list[bytes] = []

    def add(self, name: str, data: bytes) -> None:
        """Write a small entry; ValueError for a name that an archive cannot have, or has already."""
        self._begin(name, len(data), zlib.crc32(data))
        self._out.write(data)

    def add_tensor(
        self, name: str, checkpoint: Checkpoint, tensor: str, *, prefix: bytes = b"", align: int = 64
    ) -> None:
        """Write a tensor behind ``prefix`` as one entry; its first byte is at a multiple of ``align``.

        A CRC that ``checkpoint`` knows is taken over: damage to the source is not given a fresh seal.

        Raises ValueError as `add` does, and `PluginError` when the tensor has another number of bytes
        than its spec says.
        """
        spec = checkpoint.specs[checkpoint.canonical(tensor)]
        size, crc = len(prefix) + spec.nbytes, zlib.crc32(prefix)
        known = checkpoint.crc32(spec.name)
        if known is not None:
            known ^= shifted_crc32(crc, spec.nbytes)
        header = self._begin(name, size, known, before=len(prefix), align=align)
        begin = self._out.tell()
        self._out.write(prefix)
        if known is not None:
            checkpoint.copy_to(spec.name, self._out)
        else:
            sink = _Checksum(self._out, crc)
            checkpoint.copy_to(spec.name, sink)
            self._set_crc(header, sink.crc)
        written = self._out.tell() - begin
        if written != size:
            raise PluginError(
                f"{spec.name}: the reader gave {written - len(prefix)} bytes, not {spec.nbytes}"
            )

    def finish(self) -> None:
        """Write the central directory; the archive is then complete."""
        start, count = self._out.tell(), len(self._directory)
        for record in self._directory:
            self._out.write(record)
        end = self._out.tell()
        size = end - start
        if count >= _MANY or size >= _WIDE or start >= _WIDE:
            rest = END64.size - 12
            self._out.write(END64.pack(END64_MAGIC, rest, 45, 45, 0, 0, count, count, size, start))
            self._out.write(END64_LOCATOR.pack(END64_LOCATOR_MAGIC, 0, end, 1))
        count = count if count < _MANY else MAX16
        self._out.write(END.pack(END_MAGIC, 0, 0, count, count, _narrow(size), _narrow(start), 0))

    def _begin(self, name: str, size: int, crc: int | None, *, before: int = 0, align: int = 1) -> int:
        """Write a local header and note its directory record; return where the header is."""
        problem = entry_name_problem(name)
        if problem or name in self._names:
            raise ValueError(f"{name!r}: {problem or 'there is an entry of this name already'}")
        self._names.add(name)
        at, raw_name = self._out.tell(), name.encode()
        flags = 0 if name.isascii() else UTF8
        # A local header has both sizes or none in its zip64 field.
        extra = _zip64_field(size, size)
        if align > 1:
            end = at + LOCAL.size + len(raw_name) + len(extra) + FIELD.size
            padding = -(end + before) % align
            extra += FIELD.pack(_PADDING_FIELD, padding) + bytes(padding)
        version = 45 if size >= _WIDE or at >= _WIDE else 20
        middle = (version, flags, STORED, 0, _DATE, crc or 0, _narrow(size), _narrow(size), len(raw_name))
        self._out.write(LOCAL.pack(LOCAL_MAGIC, *middle, len(extra)) + raw_name + extra)
        field = _zip64_field(size, size, at)
        last = (len(field), 0, 0, 0, _REGULAR_FILE, _narrow(at))
        record = CENTRAL.pack(CENTRAL_MAGIC, _UNIX | version, *middle, *last)
        self._directory.append(record + raw_name + field)
        return at

    def _set_crc(self, header: int, crc: int) -> None:
        """Put a CRC into the last entry's two headers."""
        value = struct.pack("<I", crc)
        self._out.patch(header + _CRC_AT, value)
        # A central record has two more bytes before it.
        record = self._directory[-1]
        self._directory[-1] = record[: _CRC_AT + 2] + value + record[_CRC_AT + 2 + len(value) :]


class _Checksum:
    """A sink that passes everything on and keeps the CRC-32 of it."""

    def __init__(self, out: Sink, crc: int) -> None:
        self._out = out
        self.crc = crc

    def write(self, data: bytes | memoryview) -> None:
        self.crc = zlib.crc32(data, self.crc)
        self._out.write(data)

    def copy(self, span: Span) -> None:
        """Pass on a piece of a file; a second thread reads a long one while the kernel copies it."""
        if span.length < _BESIDE:
            self.write(span.file.read_at(span.offset, span.length))
            return
        from concurrent.futures import ThreadPoolExecutor  # imported late: it takes logging with it

        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(_crc_of, span, self.crc, stop)
            try:
                self._out.copy(span)
            except BaseException:
                stop.set()
                raise
        self.crc = job.result()


def _crc_of(span: Span, crc: int, stop: threading.Event) -> int:
    """Return the CRC-32 of a piece of a file behind data whose CRC is ``crc``; any when told to stop."""
    buffer = memoryview(bytearray(_BESIDE))
    position, end = span.offset, span.offset + span.length
    while position < end and not stop.is_set():
        piece = buffer[: end - position]
        span.file.read_into(piece, position)
        crc = zlib.crc32(piece, crc)
        position += len(piece)
    return crc


def _narrow(value: int) -> int:
    """Return a size or offset as its field of 32 bits has it."""
    return value if value < _WIDE else MAX32


def _zip64_field(*values: int) -> bytes:
    """Return the extra field with those sizes and offsets that have no room in 32 bits, if there are any."""
    wide = [value for value in values if value >= _WIDE]
    return FIELD.pack(ZIP64_FIELD, 8 * len(wide)) + struct.pack(f"<{len(wide)}Q", *wide) if wide else b""
