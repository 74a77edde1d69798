"""The values that nested formats hold beside tensors, their JSON encoding, and names that nest.

A leaf is None, a bool, an int, a float (inf and nan included), a complex, a str, bytes, an empty
map, or a list of leaves. A name is an opaque string; where a format nests, the keys on the way to a
tensor or leaf are joined with ``/``, and inside a key ``~`` is written ``~0`` and ``/`` as ``~1``
(RFC 6901).
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ckptio.errors import OptionError

__all__ = ["can_nest", "decode_leaf", "encode_leaf", "join_keys", "leaf_problem", "same_leaf", "split_name"]

_DEEPEST = 500
"""Levels of lists, fewer than Python's own recursion allows."""
_STRAY = re.compile(r"~(?![01])")


def join_keys(keys: Iterable[str]) -> str:
    """Return the name of what lies under ``keys``."""
    return "/".join(key.replace("~", "~0").replace("/", "~1") for key in keys)


def split_name(name: str) -> list[str]:
    """Return the keys of ``name``; ValueError on a ``~`` that is not an escape."""
    if _STRAY.search(name):
        raise ValueError(f"{name!r} has a '~' that is neither ~0 nor ~1")
    return [key.replace("~1", "/").replace("~0", "~") for key in name.split("/")]


def can_nest(names: Iterable[str]) -> bool:
    """Return whether all names can be split and no one is also the path of another's parent."""
    beginnings: list[str] = []  # of the name at hand, each beginning with the one before
    for name in sorted(set(names)):
        while beginnings and not name.startswith(beginnings[-1]):
            beginnings.pop()
        if _STRAY.search(name) or any(name[len(each)] == "/" for each in beginnings):
            return False
        beginnings.append(name)
    return True


def leaf_problem(value: Any) -> str | None:
    """Return why ``value`` is not a leaf, or None when it is one."""
    stack = [(value, 0)]
    while stack:
        each, depth = stack.pop()
        if isinstance(each, list | tuple):
            if depth > _DEEPEST:
                return f"lists are nested more than {_DEEPEST} deep"
            stack.extend((item, depth + 1) for item in each)
        elif isinstance(each, Mapping):
            if each:
                return "a map that is not empty is no leaf: name its entries by their path"
        elif not (each is None or isinstance(each, bool | int | float | complex | str | bytes)):
            return f"{type(each).__name__} is not a value that checkpoints hold"
    return None


def encode_leaf(value: Any) -> Any:
    """Return ``value`` as strict JSON: itself where JSON has it, else a tagged object.

    The tags are ``{"$float": "inf" | "-inf" | "nan" | "nan:<16 hex digits>"}``,
    ``{"$complex": [re, im]}`` and ``{"$bytes": "<base64>"}``; an empty map is ``{}``.
    Raises `OptionError` for what is no leaf.
    """
    problem = leaf_problem(value)
    if problem:
        raise OptionError(problem)
    return _encode(value)


def decode_leaf(value: Any) -> Any:
    """Return the leaf that `encode_leaf` made ``value`` of; ValueError when it did not."""
    try:
        return _decode(value, 0)
    except OverflowError as error:
        raise ValueError(f"not an encoded complex: {error}") from None


def _decode(value: Any, depth: int) -> Any:
    if isinstance(value, list):
        if depth > _DEEPEST:
            raise ValueError(f"lists are nested more than {_DEEPEST} deep")
        items = []
        for item in value:  # as in _encode
            items.append(_decode(item, depth + 1))
        return items
    if not isinstance(value, dict) or not value:
        return value
    match value:
        case {"$float": str(text)} if len(value) == 1:
            return _decode_float(text)
        case {"$complex": [real, imaginary]} if len(value) == 1:
            return complex(_decode_part(real), _decode_part(imaginary))
        case {"$bytes": str(text)} if len(value) == 1:
            return base64.b64decode(text, validate=True)
    raise ValueError(f"not an encoded leaf: {sorted(value)}")


def same_leaf(one: Any, other: Any) -> bool:
    """Return whether two leaves are equal in type and value, NaN payloads and -0.0 included."""
    return repr(_encode(one)) == repr(_encode(other))


def _encode(value: Any) -> Any:
    # A subclass (numpy's float64 is a float) comes back as the plain type.
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": _float_text(value)}
    if isinstance(value, complex):
        return {"$complex": [_encode(value.real), _encode(value.imag)]}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Sequence):
        items = []
        for item in value:  # no comprehension: before Python 3.12 that would be a second frame per level
            items.append(_encode(item))
        return items
    return {}


_NAN = struct.pack(">d", math.nan)


def _float_text(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    bits = struct.pack(">d", value)
    return "nan" if bits == _NAN else f"nan:{bits.hex()}"


def _decode_float(text: str) -> float:
    if text.startswith("nan:") and len(text) == len("nan:") + 16:
        (value,) = struct.unpack(">d", bytes.fromhex(text[4:]))
        if not math.isnan(value):
            raise ValueError(f"not a NaN: {text}")
        return float(value)
    if text in ("inf", "-inf", "nan"):
        return float(text)
    raise ValueError(f"not an encoded float: {text}")


def _decode_part(value: Any) -> float:
    match value:
        case bool():
            pass
        case int() | float():
            return float(value)
        case {"$float": str(text)} if len(value) == 1:
            return _decode_float(text)
    raise ValueError("not an encoded complex: a part is not a number")
