"""The wire format of protocol buffers, as far as a model of sentencepiece needs it, within bounds."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Field", "fields"]

Field = int | bytes
"""The value of a field: a varint, or bytes: four, eight, or as many as they say themselves."""
_VARINT, _EIGHT, _COUNTED, _FOUR = 0, 1, 2, 5
_LONGEST = 10
"""Bytes of the longest varint."""


def fields(message: Field) -> Iterator[tuple[int, Field]]:
    """Yield number and value of the fields of a message; ValueError when it is none."""
    if not isinstance(message, bytes):
        raise ValueError("a number stands where a message is expected")
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError(f"byte {at} begins no field")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _COUNTED:
            size, at = _varint(message, at)
        elif kind in (_FOUR, _EIGHT):
            size = 4 if kind == _FOUR else 8
        else:
            raise ValueError(f"a field of the type {kind}")
        if size > end - at:
            raise ValueError(f"a field of {size} bytes, and {end - at} are left")
        yield number, message[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for position in range(at, min(at + _LONGEST, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << (7 * (position - at))
        if byte < 0x80:
            return value, position + 1
    raise ValueError("a number without end")
