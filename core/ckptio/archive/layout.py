"""The records of a zip archive, as the reader and the writer share them (PKWARE's APPNOTE.TXT 6.3.10)."""

from __future__ import annotations

import struct

from ckptio.errors import CorruptCheckpointError
from ckptio.files import SourceFile

__all__ = [
    "CENTRAL",
    "CENTRAL_MAGIC",
    "DEFLATED",
    "END",
    "END64",
    "END64_LOCATOR",
    "END64_LOCATOR_MAGIC",
    "END64_MAGIC",
    "END_MAGIC",
    "FIELD",
    "LOCAL",
    "LOCAL_MAGIC",
    "MAX16",
    "MAX32",
    "STORED",
    "UTF8",
    "ZIP64_FIELD",
    "name_codec",
    "shown_name",
    "zip_error",
]

LOCAL_MAGIC = b"PK\x03\x04"
CENTRAL_MAGIC = b"PK\x01\x02"
END_MAGIC = b"PK\x05\x06"
END64_MAGIC = b"PK\x06\x06"
END64_LOCATOR_MAGIC = b"PK\x06\x07"

LOCAL = struct.Struct("<4s5H3I2H")
"""magic, version, flags, method, time, date, crc, compressed, size, bytes of name, of extra fields"""
CENTRAL = struct.Struct("<4s6H3I5H2I")
"""magic, made by, version, flags, method, time, date, crc, compressed, size, bytes of name, of extra
fields, of comment, disk, internal and external attributes, offset of the local header"""
END = struct.Struct("<4s4H2IH")
"""magic, disk, disk of the directory, entries here, entries in all, the directory's size and offset, bytes
of comment"""
END64 = struct.Struct("<4sQ2H2I4Q")
"""magic, bytes that follow, made by, version, then as in `END` without the comment"""
END64_LOCATOR = struct.Struct("<4sIQI")
"""magic, disk, offset of `END64`, disks"""
FIELD = struct.Struct("<2H")
"""what kind of extra field, its bytes"""

STORED, DEFLATED = 0, 8
UTF8 = 1 << 11
"""The flag of a name in UTF-8; without it, it is in code page 437."""
ZIP64_FIELD = 1
MAX16, MAX32 = 0xFFFF, 0xFFFFFFFF
"""In a field of 16 or 32 bits: the value is in the zip64 record."""


def name_codec(flags: int) -> str:
    """Return the codec of an entry's name."""
    return "utf-8" if flags & UTF8 else "cp437"


def shown_name(name: str) -> str:
    """Return a name as messages have it: a damaged length can make half of the file a name."""
    return repr(name if len(name) <= 80 else name[:80] + "…")


def zip_error(file: SourceFile, what: str, offset: int) -> CorruptCheckpointError:
    """Return the error of an archive that is not what it says."""
    return CorruptCheckpointError(what, path=file.path, offset=offset)
