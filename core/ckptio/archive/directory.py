"""The central directory of a zip archive, parsed within bounds and held against the entries' own headers."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ckptio.archive.end import find_directory
from ckptio.archive.layout import (
    CENTRAL,
    CENTRAL_MAGIC,
    DEFLATED,
    FIELD,
    LOCAL,
    LOCAL_MAGIC,
    MAX16,
    MAX32,
    STORED,
    ZIP64_FIELD,
    name_codec,
    shown_name,
    zip_error,
)
from ckptio.errors import UnsupportedError
from ckptio.files import Cursor, SourceFile

__all__ = ["ZipEntry", "read_entries"]

_ENCRYPTED = 1 | 1 << 6 | 1 << 13
_DESCRIPTOR = 1 << 3
_DESCRIPTOR_SIZES = (12, 16, 20, 24)
"""CRC and two sizes of 4 or 8 bytes behind the data, with a magic before them or without."""
_BEST_RATIO = 1032
"""No deflate stream holds more bytes for each of its own: 258 for every two bits."""


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One entry: ``offset`` is that of its data in the file, ``crc`` that of its uncompressed bytes."""

    name: str
    method: int
    offset: int
    compressed_size: int
    size: int
    crc: int

    @property
    def stored(self) -> bool:
        """True when the entry's bytes stand in the file as they are."""
        return self.method == STORED


@dataclass(frozen=True, slots=True)
class _Listed:
    """An entry as the central directory has it; ``at`` is the offset of that record."""

    at: int
    flags: int
    method: int
    crc: int
    compressed: int
    size: int
    raw_name: bytes
    header: int


def read_entries(file: SourceFile, *, names_are_paths: bool) -> dict[str, ZipEntry]:
    """Return the entries by name, in the order of the directory; `ZipArchive` says what is refused."""
    start, size, count = find_directory(file)
    entries: dict[str, ZipEntry] = {}
    extents: list[tuple[int, int, bool]] = []
    for listed in _read_directory(file, start, size, count):
        name = _decode_name(file, listed, names_are_paths)
        if name in entries:
            raise zip_error(file, f"two entries are named {shown_name(name)}", listed.at)
        entry = entries[name] = _locate(file, listed, name, start)
        end = entry.offset + entry.compressed_size
        extents.append((listed.header, end, bool(listed.flags & _DESCRIPTOR)))
    _check_extents(file, extents, start)
    return entries


def _read_directory(file: SourceFile, start: int, size: int, count: int) -> Iterator[_Listed]:
    cursor, end = Cursor(file, start), start + size
    for index in range(count):
        at, what = cursor.offset, f"entry {index} of the central directory"
        values = cursor.unpack(CENTRAL, what)
        magic, _, _, flags, method, _, _, crc, compressed, length = values[:10]
        name_length, extra_length, comment_length, disk, _, _, header = values[10:]
        if magic != CENTRAL_MAGIC:
            raise zip_error(file, f"{what} is damaged", at)
        raw_name = cursor.take(name_length, what)
        extra = cursor.take(extra_length, what)
        cursor.skip(comment_length, what)
        if cursor.offset > end:
            raise zip_error(file, f"{what} goes beyond its end", at)
        length, compressed, header = _widened(file, extra, (length, compressed, header), at)
        if disk not in (0, MAX16):
            raise UnsupportedError(f"{file.path}: one part of a split zip archive; join the parts first")
        yield _Listed(at, flags, method, crc, compressed, length, raw_name, header)
    if cursor.offset != end:
        raise zip_error(
            file, f"{end - cursor.offset} bytes follow the last of {count} entries", cursor.offset
        )


def _widened(file: SourceFile, extra: bytes, fields: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Return the fields with those that have no room in 32 bits taken from the zip64 extra field."""
    count = fields.count(MAX32)
    if not count:
        return fields
    begin = 0
    while begin + FIELD.size <= len(extra):
        kind, length = FIELD.unpack_from(extra, begin)
        begin += FIELD.size
        if kind == ZIP64_FIELD and 8 * count <= length <= len(extra) - begin:
            wide = iter(struct.unpack_from(f"<{count}Q", extra, begin))
            return tuple(next(wide) if field == MAX32 else field for field in fields)
        begin += length
    raise zip_error(file, "an entry refers to a zip64 field that is missing or damaged", at)


def _decode_name(file: SourceFile, listed: _Listed, names_are_paths: bool) -> str:
    try:
        name = listed.raw_name.decode(name_codec(listed.flags))
    except UnicodeDecodeError:
        raise zip_error(file, f"the name {listed.raw_name[:80]!r} is not UTF-8", listed.at) from None
    if not name or "\0" in name:
        raise zip_error(file, f"{shown_name(name)} is not the name of an entry", listed.at)
    if names_are_paths and (name[0] in "/\\" or ".." in re.split(r"[/\\]", name)):
        raise zip_error(file, f"the name {shown_name(name)} leads out of the archive", listed.at)
    return name


def _locate(file: SourceFile, listed: _Listed, name: str, directory: int) -> ZipEntry:
    """Return the entry with the place of its data; the header before the data must say the same."""
    if listed.flags & _ENCRYPTED:
        raise UnsupportedError(
            f"{file.path}: entry {shown_name(name)} is encrypted; decrypt the archive first"
        )
    if listed.method not in (STORED, DEFLATED):
        raise UnsupportedError(
            f"{file.path}: entry {shown_name(name)} is compressed by method {listed.method}; "
            "only stored and deflated entries are read"
        )
    data = _check_local(file, listed, name, directory)
    if data + listed.compressed > directory:
        what = (
            f"entry {shown_name(name)} of {listed.compressed} bytes from {data} on reaches into the directory"
        )
        raise zip_error(file, what, listed.at)
    impossible = (
        listed.size != listed.compressed
        if listed.method == STORED
        else listed.size > _BEST_RATIO * listed.compressed
    )
    if impossible:
        what = f"entry {shown_name(name)} cannot have {listed.size} bytes in {listed.compressed}"
        raise zip_error(file, what, listed.at)
    return ZipEntry(name, listed.method, data, listed.compressed, listed.size, listed.crc)


def _check_local(file: SourceFile, listed: _Listed, name: str, directory: int) -> int:
    """Hold an entry's local header against the central one; return the offset behind it."""
    at, length = listed.header, LOCAL.size + len(listed.raw_name)
    if at + length > directory:
        raise zip_error(file, f"the header of entry {shown_name(name)} cannot be at byte {at}", listed.at)
    raw = file.read_at(at, length)
    magic, _, flags, method, _, _, crc, compressed, size, name_length, extra_length = LOCAL.unpack_from(raw)
    if magic != LOCAL_MAGIC:
        raise zip_error(file, f"entry {shown_name(name)} has no header here", at)
    if at + LOCAL.size + name_length + extra_length > directory:
        raise zip_error(file, f"the header of entry {shown_name(name)} reaches into the directory", at)
    if MAX32 in (compressed, size):
        extra = file.read_at(at + LOCAL.size + name_length, extra_length)
        size, compressed = _widened(file, extra, (size, compressed), at)
    # A writer that could not go back says nothing here, and the same behind the data.
    sizes_differ = (crc, compressed, size) != (listed.crc, listed.compressed, listed.size)
    left_out = flags & listed.flags & _DESCRIPTOR and not (crc or compressed or size)
    names_differ = raw[LOCAL.size :] != listed.raw_name or name_length != len(listed.raw_name)
    if method != listed.method or names_differ or flags & _ENCRYPTED or (sizes_differ and not left_out):
        raise zip_error(
            file, f"entry {shown_name(name)} is described differently here and in the central directory", at
        )
    return int(at + LOCAL.size + name_length + extra_length)


def _check_extents(file: SourceFile, extents: list[tuple[int, int, bool]], directory: int) -> None:
    """See that headers and data follow each other from the first byte to the directory, without a hole."""
    extents.sort()
    position, descriptor = 0, False
    for start, end, has_descriptor in [*extents, (directory, directory, False)]:
        gap = start - position
        if gap < 0:
            raise zip_error(file, "two entries overlap", start)
        if gap and not (descriptor and gap in _DESCRIPTOR_SIZES):
            what = f"{gap} bytes belong to no entry: something was put before the archive or into it"
            raise zip_error(file, what, position)
        position, descriptor = end, has_descriptor
