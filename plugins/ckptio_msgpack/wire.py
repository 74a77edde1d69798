"""msgpack as far as checkpoints use it: the head of a value, and what flax puts into it.

The facts are those of msgpack's specification (https://github.com/msgpack/msgpack/blob/master/spec.md)
and of ``flax/serialization.py``: ext type 1 is an array and 3 a numpy scalar, both with the msgpack of
(shape, name of the dtype, bytes in C order) as payload; 2 is a Python complex, the msgpack of (re, im).
An array above the chunk limit is a map of `CHUNKED` to true, ``shape`` and ``chunks``, the latter two
keyed ``"0"``, ``"1"``, … An array in a list, however deep, is never chunked.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, Protocol

import msgpack

from ckptio import CheckpointError, DType, TensorSpec

__all__ = [
    "ARRAY",
    "CHUNKED",
    "COMPLEX",
    "DTYPES",
    "FLAT",
    "SCALAR",
    "Head",
    "Reader",
    "array_head",
    "fits_one_ext",
    "read_head",
]

ARRAY, COMPLEX, SCALAR = 1, 2, 3
CHUNKED = "__msgpack_chunked_array__"
FLAT = "__ckptio_flat__"
"""The key, ours and not flax's, that marks a map whose other keys are whole names."""
DTYPES = {dtype.long_name: dtype for dtype in DType}


class Reader(Protocol):
    """What is needed of ``ckptio.Cursor``, which is one."""

    offset: int

    @property
    def left(self) -> int: ...

    def take(self, size: int, what: str) -> bytes: ...

    def skip(self, size: int, what: str) -> None: ...

    def error(self, what: str, offset: int | None = None) -> CheckpointError: ...


class Head(NamedTuple):
    """The first bytes of a value, decoded.

    ``kind`` is ``map`` or ``list`` (``value`` entries follow), ``str``, ``bin`` or ``ext`` (``value``
    bytes follow; ``code`` is the ext type), or ``plain`` (``value`` is all of it).
    """

    kind: str
    value: Any
    code: int = 0


_LONGEST = 2**32 - 1
"""The most bytes that a string, a byte string or the payload of an ext value can have."""
_WHOLE = {
    **{byte: Head("plain", byte) for byte in range(0x80)},
    **{0x80 + count: Head("map", count) for count in range(16)},
    **{0x90 + count: Head("list", count) for count in range(16)},
    **{0xA0 + length: Head("str", length) for length in range(32)},
    0xC0: Head("plain", None),
    0xC2: Head("plain", False),
    0xC3: Head("plain", True),
    **{byte: Head("plain", byte - 0x100) for byte in range(0xE0, 0x100)},
}
"""The heads that are one byte."""
_FIXED = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_NUMBERS = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_COUNTS = {
    0xC4: ("bin", struct.Struct(">B")),
    0xC5: ("bin", struct.Struct(">H")),
    0xC6: ("bin", struct.Struct(">I")),
    0xC7: ("ext", struct.Struct(">Bb")),
    0xC8: ("ext", struct.Struct(">Hb")),
    0xC9: ("ext", struct.Struct(">Ib")),
    0xD9: ("str", struct.Struct(">B")),
    0xDA: ("str", struct.Struct(">H")),
    0xDB: ("str", struct.Struct(">I")),
    0xDC: ("list", struct.Struct(">H")),
    0xDD: ("list", struct.Struct(">I")),
    0xDE: ("map", struct.Struct(">H")),
    0xDF: ("map", struct.Struct(">I")),
}
_LEAST = {"map": 2, "list": 1, "str": 1, "bin": 1, "ext": 1}
"""The fewest bytes that each entry, element or byte of a value takes up."""


def read_head(reader: Reader) -> Head:
    """Read the head of the next value; what it claims to hold is no more than what is left."""
    start = reader.offset
    first = reader.take(1, "the head of a value")
    byte = first[0]
    if byte in _WHOLE:
        head = _WHOLE[byte]
        if head.kind == "plain":
            return head
    elif byte in _NUMBERS:
        return Head("plain", msgpack.unpackb(first + reader.take(_NUMBERS[byte], "a number")))
    elif byte in _COUNTS:
        kind, layout = _COUNTS[byte]
        head = Head(kind, *layout.unpack(reader.take(layout.size, f"the head of a {kind}")))
    elif byte in _FIXED:
        (code,) = struct.unpack("b", reader.take(1, "the head of an ext"))
        head = Head("ext", _FIXED[byte], code)
    else:
        raise reader.error(f"byte {byte:#x} starts no msgpack value", start)
    if head.value * _LEAST[head.kind] > reader.left:
        raise reader.error(
            f"this {head.kind} value claims a length of {head.value}, but {reader.left} bytes are left",
            start,
        )
    return head


def array_head(spec: TensorSpec, *, scalar: bool = False) -> bytes:
    """Return all bytes of an array before its elements, with the widths that flax's packer chooses."""
    inner = _payload_head(spec)
    return _ext_head(SCALAR if scalar else ARRAY, len(inner) + spec.nbytes) + inner


def fits_one_ext(spec: TensorSpec) -> bool:
    """Return whether a tensor can be written without chunks."""
    return spec.nbytes <= _LONGEST and len(_payload_head(spec)) + spec.nbytes <= _LONGEST


def _payload_head(spec: TensorSpec) -> bytes:
    shape: bytes = msgpack.packb(spec.shape)
    name: bytes = msgpack.packb(spec.dtype.long_name)
    return b"\x93" + shape + name + _bin_head(spec.nbytes)


def _bin_head(length: int) -> bytes:
    if length < 1 << 8:
        return struct.pack(">BB", 0xC4, length)
    return struct.pack(">BH", 0xC5, length) if length < 1 << 16 else struct.pack(">BI", 0xC6, length)


def _ext_head(code: int, length: int) -> bytes:
    for byte, fixed in _FIXED.items():
        if length == fixed:
            return struct.pack(">Bb", byte, code)
    if length < 1 << 8:
        return struct.pack(">BBb", 0xC7, length, code)
    if length < 1 << 16:
        return struct.pack(">BHb", 0xC8, length, code)
    return struct.pack(">BIb", 0xC9, length, code)
