"""The header of an ``.npy`` array (``numpy.lib.format``, versions 1 to 3), parsed strictly and packed."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ckptio import DType, TensorSpec

__all__ = ["MAGIC", "ArrayHeader", "carrier", "pack_header", "parse_header"]

MAGIC = b"\x93NUMPY"
_LENGTHS = {1: struct.Struct("<H"), 2: struct.Struct("<I"), 3: struct.Struct("<I")}
"""How the length of the text is packed, by version."""
_LONGEST = 10_000
"""Bytes of text that numpy itself takes from a stranger."""

_PAIR = re.compile(
    r"""\s*(['"])(?P<key>descr|fortran_order|shape)\1\s*:\s*"""
    r"""(?:(['"])(?P<text>[^'"\\]*)\3|(?P<flag>True|False)|\((?P<shape>[\d,\sL]*)\))\s*(?:,|(?=\}))"""
)
_STRUCTURED = re.compile(r"""\{\s*(['"])descr\1\s*:\s*\[""")
_DIMENSION = re.compile(r"\d{1,20}L?")
"""Python 2 wrote a long integer with an L."""


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """What a header says; ``descr`` is numpy's name of the dtype, "[" for a structured one.

    ``size`` is that of the header itself in bytes, and ``crc`` its CRC-32.
    """

    descr: str
    fortran: bool
    shape: tuple[int, ...]
    size: int
    crc: int

    @property
    def kind(self) -> str:
        """The dtype without its byte order, such as ``f4``."""
        return self.descr.lstrip("<>|=")

    @property
    def big_endian(self) -> bool:
        return self.descr.startswith(">")


def carrier(dtype: DType) -> DType:
    """Return the type that numpy can name for the elements of ``dtype``: itself, or an unsigned integer."""
    if dtype.long_name.startswith(("bfloat", "float8")):
        return DType.U8 if dtype.itemsize == 1 else DType.U16
    return dtype


def pack_header(spec: TensorSpec) -> bytes:
    """Return the bytes before the elements of a tensor."""
    packed = io.BytesIO()
    descr = carrier(spec.dtype).numpy.str
    content = {"descr": descr, "fortran_order": False, "shape": spec.shape}
    np.lib.format.write_array_header_1_0(packed, content)
    return packed.getvalue()


def parse_header(beginning: Callable[[int], bytes]) -> ArrayHeader:
    """Parse the header of an array; ``beginning(n)`` gives its first ``n`` bytes, fewer where it ends.

    Raises ValueError with the reason.
    """
    start = beginning(256)
    if not start.startswith(MAGIC):
        raise ValueError("it is not an .npy array")
    packing = _LENGTHS.get(start[6]) if len(start) > 6 else None
    if packing is None:
        raise ValueError(f"version {start[6:7].hex() or '?'} of .npy is unknown; 1 to 3 are read")
    at = len(MAGIC) + 2 + packing.size
    if len(start) < at:
        raise ValueError("it ends inside its header")
    (length,) = packing.unpack_from(start, at - packing.size)
    if length > _LONGEST:
        raise ValueError(f"its header claims {length} bytes; no array has more than {_LONGEST}")
    if at + length > len(start):
        start = beginning(at + length)
    if at + length > len(start):
        raise ValueError("it ends inside its header")
    start = start[: at + length]
    text = start[at:].decode("utf-8" if start[6] == 3 else "latin-1")
    return ArrayHeader(*_parse_text(text.strip()), len(start), zlib.crc32(start))


def _parse_text(text: str) -> tuple[str, bool, tuple[int, ...]]:
    """Parse the literal of a dict, as far as arrays have it; it is never evaluated."""
    if _STRUCTURED.match(text):
        return "[", False, ()
    found: dict[str, str | None] = {}
    at = 1
    while pair := _PAIR.match(text, at):
        kind = {"descr": "text", "fortran_order": "flag", "shape": "shape"}[pair["key"]]
        if pair["key"] in found or pair[kind] is None:
            raise ValueError(f"its header has a wrong {pair['key']}")
        found[pair["key"]] = pair[kind]
        at = pair.end()
    if not text.startswith("{") or text[at:].strip() != "}" or len(found) != 3:
        raise ValueError(f"its header is damaged: {text[:80]!r}")
    return str(found["descr"]), found["fortran_order"] == "True", _parse_shape(str(found["shape"]))


def _parse_shape(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if parts[-1] == "":
        parts.pop()
    elif len(parts) == 1:
        raise ValueError(f"its shape ({text}) is a number, not a tuple")
    if not all(_DIMENSION.fullmatch(part) for part in parts):
        raise ValueError(f"its shape ({text[:80]}) is damaged")
    return tuple(int(part.removesuffix("L")) for part in parts)
