"""The end of a zip archive, which says where its central directory is; before zip64 and since."""

from __future__ import annotations

from collections.abc import Sequence

from ckptio.archive.layout import (
    CENTRAL,
    END,
    END64,
    END64_LOCATOR,
    END64_LOCATOR_MAGIC,
    END64_MAGIC,
    END_MAGIC,
    MAX16,
    MAX32,
    zip_error,
)
from ckptio.errors import UnsupportedError
from ckptio.files import SourceFile
from ckptio.limits import current_limits

__all__ = ["find_directory"]

_BESIDE_TENSORS = 64
"""Entries that an archive may have beyond one per tensor."""


def find_directory(file: SourceFile) -> tuple[int, int, int]:
    """Return the offset and the size of the central directory, and how many entries it should have."""
    begin = max(0, file.size - END.size - MAX16)
    tail = file.read_at(begin, file.size - begin)
    at = tail.rfind(END_MAGIC)
    while at >= 0 and not _ends_file(tail, at):
        at = tail.rfind(END_MAGIC, 0, at)
    if at < 0:
        raise zip_error(file, "no end of a central directory: not a zip archive, or one cut short", file.size)
    end = begin + at
    *fields, _ = END.unpack_from(tail, at)[1:]
    found = _find_end64(file, end)
    if found is not None:
        wide, position = found
        marks = (MAX16, MAX16, MAX16, MAX16, MAX32, MAX32)
        for mark, field, value in zip(marks, fields, wide, strict=True):
            if field not in (mark, value):
                raise zip_error(
                    file, f"the end record has {field} where the zip64 end record has {value}", end
                )
        fields, end = list(wide), position
    disk, directory_disk, here, count, size, start = fields
    if disk or directory_disk or here != count:
        raise UnsupportedError(f"{file.path}: one part of a split zip archive; join the parts first")
    if start + size != end:
        raise zip_error(
            file,
            f"the central directory should end at byte {start + size} and does at {end}: "
            "the archive was cut, or something was put before it",
            end,
        )
    limits = current_limits()
    if size > limits.header_bytes:
        raise zip_error(file, f"a central directory of {size} bytes is above {limits.header_bytes}", start)
    if count > size // CENTRAL.size:
        raise zip_error(file, f"{count} entries cannot be in a central directory of {size} bytes", end)
    if count > limits.tensors + _BESIDE_TENSORS:
        raise zip_error(file, f"{count} entries are more than the limit of {limits.tensors}", end)
    return start, size, count


def _ends_file(tail: bytes, at: int) -> bool:
    """Return whether the end record at ``at``, with its comment, reaches exactly to the end."""
    return len(tail) - at >= END.size and at + END.size + END.unpack_from(tail, at)[-1] == len(tail)


def _find_end64(file: SourceFile, end: int) -> tuple[Sequence[int], int] | None:
    """Return the fields of the zip64 end record and its offset, when the archive has one."""
    at = end - END64_LOCATOR.size
    if at < 0:
        return None
    magic, _, position, _ = END64_LOCATOR.unpack(file.read_at(at, END64_LOCATOR.size))
    if magic != END64_LOCATOR_MAGIC:
        return None
    if position > at - END64.size:
        raise zip_error(file, f"the zip64 end record cannot be at byte {position}", at)
    magic, length, _, _, *fields = END64.unpack(file.read_at(position, END64.size))
    # The length leaves out the magic and itself.
    if magic != END64_MAGIC or position + 12 + length != at:
        found = at - END64.size
        if position < found and file.read_at(found, len(END64_MAGIC)) == END64_MAGIC:
            what = f"the zip64 end record should be at byte {position} and is at {found}"
            raise zip_error(file, f"{what}: something was put before the archive, another one perhaps", at)
        raise zip_error(file, "the zip64 end record is not where it should be, or damaged", position)
    return fields, position
