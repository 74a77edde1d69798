"""Zip archives as containers of checkpoints: where each entry lies, and its bytes, within bounds.

The directory is parsed here and not by the standard library's zipfile, which reads it whole, whatever
size it claims, and lets pass what makes two readers of one archive see different things: duplicate
names, overlapping entries, bytes in front of the archive. Here every byte of the file belongs to one
record, and each entry's two headers agree. Writing is in `ckptio.archive`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

from ckptio.archive.directory import ZipEntry, read_entries
from ckptio.archive.inflate import Inflater
from ckptio.archive.layout import DEFLATED, LOCAL, LOCAL_MAGIC, name_codec, shown_name, zip_error
from ckptio.checkpoint import CHUNK_BYTES, Span
from ckptio.files import SourceFile

__all__ = ["ZipArchive", "ZipEntry", "first_entry"]

_BLOCK = 64 << 10


class ZipArchive:
    """The entries of an open zip archive, by name, in the order of its central directory.

    Names are refused that lead out of a directory (absolute ones, ``..``), unless
    ``names_are_paths=False`` says that they are only ever keys; NUL and duplicates always.

    Raises `CorruptCheckpointError` with the offset of what is wrong, and `UnsupportedError` for an
    archive that is encrypted, split, or compressed by another method than deflate.
    """

    def __init__(self, file: SourceFile, *, names_are_paths: bool = True) -> None:
        self.file = file
        self.entries: Mapping[str, ZipEntry] = read_entries(file, names_are_paths=names_are_paths)

    def span(self, entry: ZipEntry) -> Span:
        """Return the piece of the file that is a stored entry's data; ValueError for a deflated one."""
        if not entry.stored:
            raise ValueError(f"{shown_name(entry.name)} is compressed")
        return Span(self.file, entry.offset, entry.size)

    def chunks(
        self, entry: ZipEntry, max_bytes: int = CHUNK_BYTES, start: int = 0, stop: int | None = None
    ) -> Iterator[memoryview]:
        """Yield the bytes of an entry from ``start`` to ``stop``, ``max_bytes`` at a time, the last fewer.

        An entry that is read to its end is held against its CRC, a stored one only where ``start`` is
        small. A deflated one is inflated from its beginning each time.
        """
        stop = entry.size if stop is None else stop
        block = max_bytes * max(1, _BLOCK // max_bytes)
        for data in self._blocks(entry, block, start, stop):
            view = memoryview(data)
            for first in range(0, len(view), max_bytes):
                yield view[first : first + max_bytes]

    def read(self, entry: ZipEntry, limit: int) -> bytes:
        """Return all bytes of a small entry, checked; an error when it has more than ``limit``."""
        if entry.size > limit:
            what = f"{shown_name(entry.name)} has {entry.size} bytes; no more than {limit} are expected"
            raise zip_error(self.file, what, entry.offset)
        return b"".join(self.chunks(entry))

    def _blocks(self, entry: ZipEntry, block: int, start: int, stop: int) -> Iterator[bytes]:
        if not entry.stored:
            yield from self._inflated(entry, block, start, stop)
            return
        whole = start <= _BLOCK and stop == entry.size
        crc = zlib.crc32(self.file.read_at(entry.offset, start)) if whole else 0
        for position in range(start, stop, block):
            data = self.file.read_at(entry.offset + position, min(block, stop - position))
            if whole:
                crc = zlib.crc32(data, crc)
            yield data
        if whole:
            self._check_crc(entry, crc)

    def _inflated(self, entry: ZipEntry, block: int, start: int, stop: int) -> Iterator[bytes]:
        stream = Inflater(self.file, shown_name(entry.name), entry.offset, entry.compressed_size)
        crc, position = 0, 0
        while position < stop:
            count = min(block, (start if position < start else stop) - position)
            data = stream.read(count)
            crc = zlib.crc32(data, crc)
            if position >= start:
                yield data
            position += count
        if stop == entry.size:
            stream.finish()
            self._check_crc(entry, crc)

    def _check_crc(self, entry: ZipEntry, crc: int) -> None:
        if crc != entry.crc:
            name = shown_name(entry.name)
            what = f"the CRC-32 of {name} is {crc:08x} instead of {entry.crc:08x}: damaged data"
            raise zip_error(self.file, what, entry.offset)


def first_entry(head: bytes) -> tuple[str, bytes] | None:
    """Return the name and the first bytes of the entry that a file beginning with ``head`` begins with.

    It is for `ckptio.Format.match`, so it looks no further; None when that is no zip archive.
    """
    if not head.startswith(LOCAL_MAGIC) or len(head) < LOCAL.size:
        return None
    _, _, flags, method, *_, name_length, extra_length = LOCAL.unpack_from(head)
    at = LOCAL.size + name_length + extra_length
    name = head[LOCAL.size : LOCAL.size + name_length].decode(name_codec(flags), "replace")
    if method != DEFLATED:
        return name, head[at:]
    try:
        return name, zlib.decompressobj(-zlib.MAX_WBITS).decompress(head[at:], len(head))
    except zlib.error:
        return name, b""
