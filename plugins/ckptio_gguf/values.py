"""The metadata values of GGUF, parsed within bounds and packed: numbers, texts, and arrays of them."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

import ckptio

__all__ = ["infer_type", "pack_string", "pack_value", "read_string", "read_value"]

LENGTH = struct.Struct("<Q")
_KIND = struct.Struct("<I")
_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "[]", "u64", "i64", "f64")
"""The types by their numbers."""
_CODES = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i"} | {
    "u64": "Q",
    "i64": "q",
    "f32": "f",
    "f64": "d",
    "bool": "?",
}
_STRUCTS = {name: struct.Struct(f"<{code}") for name, code in _CODES.items()}
_NUMPY = {name: np.dtype(f"<{code}") for name, code in _CODES.items()}
_SMALL = list(range(-128, 128))
"""The values of an i8 once each: an array of them is not to take an object per byte."""
_NOT_FINITE = ("nan", "inf", "-inf")
_SCALAR_INTS = ("u32", "i32", "u64", "i64")
_ARRAY_INTS = ("i32", "u32", "i64", "u64")
_DEEPEST = 32
"""Arrays in arrays; programs write none at all."""


def read_string(cursor: ckptio.Cursor, what: str, errors: str = "strict") -> str:
    """Return the next string, which is ``what``."""
    begin = cursor.offset
    (length,) = cursor.unpack(LENGTH, what)
    data = cursor.take(length, what)
    try:
        return data.decode(errors=errors)
    except UnicodeDecodeError:
        raise cursor.error(f"{what} is not UTF-8", begin) from None


def read_value(cursor: ckptio.Cursor, what: str) -> tuple[Any, str]:
    """Return the next value, its type before it, and the name of the type: ``u32``, ``str``, ``[f32]``."""
    return _value(cursor, what, _read_kind(cursor, what))


def _read_kind(cursor: ckptio.Cursor, what: str) -> str:
    begin = cursor.offset
    (number,) = cursor.unpack(_KIND, what)
    if number >= len(_NAMES):
        raise cursor.error(f"{what} has the type {number}; GGUF has 0 to {len(_NAMES) - 1}", begin)
    return _NAMES[number]


def _value(cursor: ckptio.Cursor, what: str, kind: str, depth: int = 0) -> tuple[Any, str]:
    if kind == "str":
        # Tokens may be any bytes; what is no UTF-8 comes through as surrogates.
        return read_string(cursor, what, "surrogateescape"), kind
    if kind != "[]":
        return _numbers(cursor, what, kind, 1)[0], kind
    if depth == _DEEPEST:
        raise cursor.error(f"{what} has arrays more than {_DEEPEST} deep")
    inner = _read_kind(cursor, what)
    begin = cursor.offset
    (count,) = cursor.unpack(LENGTH, what)
    least = _STRUCTS[inner].size if inner in _STRUCTS else LENGTH.size
    if count * least > cursor.left:
        raise cursor.error(f"{what} claims {count} values in {cursor.left} bytes", begin)
    if inner in _STRUCTS:
        return _numbers(cursor, what, inner, count), f"[{inner}]"
    values, kinds = [], {inner}
    for _ in range(count):
        value, found = _value(cursor, what, inner, depth + 1)
        values.append(value)
        kinds = {found} if kinds == {inner} else kinds | {found}
    if len(kinds) > 1:
        raise ckptio.UnsupportedError(f"{cursor.file.path}: {what} has arrays of several types in one array")
    return values, f"[{kinds.pop()}]"


def _numbers(cursor: ckptio.Cursor, what: str, kind: str, count: int) -> list[Any]:
    begin = cursor.offset
    data = cursor.take(count * _STRUCTS[kind].size, what)
    if kind == "bool" and data.translate(None, b"\0\1"):
        raise cursor.error(f"{what} is a truth value that is neither 0 nor 1", begin)
    array = np.frombuffer(data, _NUMPY[kind])
    if kind == "i8":
        return [_SMALL[value] for value in array.astype(np.int16) + 128]
    if kind in ("f32", "f64") and not np.isfinite(array).all():
        return [value if math.isfinite(value) else str(value) for value in array.tolist()]
    found: list[Any] = array.tolist()
    return found


def pack_string(text: str) -> bytes:
    """Return a string; UnicodeEncodeError when it is no text."""
    data = text.encode(errors="surrogateescape")
    return LENGTH.pack(len(data)) + data


def pack_value(value: Any, kind: str) -> bytes:
    """Return a value with its type before it; ValueError when it is not of the type."""
    if kind.startswith("["):
        return _KIND.pack(_NAMES.index("[]")) + _pack(value, kind)
    return _KIND.pack(_NAMES.index(kind)) + _pack(value, kind)


def _pack(value: Any, kind: str) -> bytes:
    if kind.startswith("["):
        if not isinstance(value, list):
            raise ValueError("no list")
        inner = kind[1:-1]
        number = _NAMES.index("[]" if inner.startswith("[") else inner)
        head = _KIND.pack(number) + LENGTH.pack(len(value))
        return head + b"".join([_pack(each, inner) for each in value])
    if kind == "str":
        if not isinstance(value, str):
            raise ValueError("no text")
        return pack_string(value)
    if kind in ("f32", "f64"):
        return _pack_float(value, kind)
    wanted = bool if kind == "bool" else int
    if type(value) is not wanted:
        raise ValueError(f"no {wanted.__name__}")
    try:
        return _STRUCTS[kind].pack(value)
    except struct.error:
        raise ValueError("out of range") from None


def _pack_float(value: Any, kind: str) -> bytes:
    if value in _NOT_FINITE:
        value = float(value)
    elif type(value) is not float or not math.isfinite(value):
        raise ValueError("no float")
    try:
        data = _STRUCTS[kind].pack(value)
    except OverflowError:
        raise ValueError("out of range") from None
    if math.isfinite(value) and _STRUCTS[kind].unpack(data) != (value,):
        raise ValueError("not exact")
    return data


def infer_type(value: Any) -> str | None:
    """Return the type that a value is written as when nothing says another; None when it has none."""
    if isinstance(value, list):
        if not value:
            return "[i32]"
        kinds = {type(each) for each in value}
        inner = _infer(value, kinds.pop(), _ARRAY_INTS) if len(kinds) == 1 else None
        return f"[{inner}]" if inner else None
    return _infer([value], type(value), _SCALAR_INTS)


def _infer(values: list[Any], python: type, integers: tuple[str, ...]) -> str | None:
    if python is bool:
        return "bool"
    if python is str:
        return "str"
    candidates: tuple[str, ...] = ()
    if python is int:
        low, high = min(values), max(values)
        candidates, values = integers, [low, high]
    elif python is float:
        candidates = ("f32", "f64")
    return next((kind for kind in candidates if all(_packs(value, kind) for value in values)), None)


def _packs(value: Any, kind: str) -> bool:
    try:
        _pack(value, kind)
    except ValueError:
        return False
    return True
