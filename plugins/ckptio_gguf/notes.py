"""Between the metadata of a file and those of a checkpoint; the package describes how they correspond."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import ckptio
from ckptio import Problem
from ckptio.jsontext import nesting_problem, parse_object
from ckptio_gguf.config import ARCHITECTURE, CONFIG, config_of
from ckptio_gguf.values import infer_type, pack_string, pack_value, read_string, read_value

__all__ = [
    "ALIGNMENT",
    "DEFAULT_ALIGNMENT",
    "OWN",
    "SPLIT_COUNT",
    "SPLIT_KINDS",
    "SPLIT_NO",
    "SPLIT_TENSORS",
    "Said",
    "is_alignment",
    "metadata_problems",
    "note_of",
    "pack_metadata",
    "read_metadata",
    "short_key",
]

OWN = "gguf"
"""The key of metadata under which the reader notes what only concerns the file."""
ALIGNMENT = "general.alignment"
DEFAULT_ALIGNMENT = 32
SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
SPLIT_KINDS = {SPLIT_NO: "u16", SPLIT_COUNT: "u16", SPLIT_TENSORS: "i32"}
"""What a file of a set says, in the types that llama.cpp insists on; a count of 0 or 1 is a whole file."""
Said = Mapping[str, tuple[Any, str | None]]
"""What one file says of its set: the values of its own keys of `SPLIT_KINDS`, each with its type."""
_JSON = "ckptio.metadata"
_LARGEST_ALIGNMENT = 1 << 16
_LONGEST_KEY = (1 << 16) - 1
_LEAST = 13
"""Bytes of the smallest key and value: a length, a type, and one byte."""


def is_alignment(value: Any) -> bool:
    """Return whether data can be written at multiples of ``value`` bytes: a power of two from 8 to 64 KiB."""
    return type(value) is int and 8 <= value <= _LARGEST_ALIGNMENT and value & (value - 1) == 0


def note_of(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reader's note among metadata; an empty one where there is none."""
    note = metadata.get(OWN)
    return note if isinstance(note, Mapping) else {}


def read_metadata(cursor: ckptio.Cursor, count: int) -> tuple[dict[str, Any], int, Said]:
    """Return the metadata (the reader's own note among them), the alignment, and what is said of a set."""
    if count * _LEAST > cursor.left:
        raise cursor.error(f"{count} metadata values cannot be in the {cursor.left} bytes that follow")
    metadata: dict[str, Any] = {}
    types: dict[str, str] = {}
    beside: dict[str, Any] = {}
    alignment = None
    for _ in range(count):
        begin = cursor.offset
        key = read_string(cursor, "a metadata key")
        if key in metadata or (key == ALIGNMENT and alignment is not None) or (key == _JSON and beside):
            raise cursor.error(f"the metadata key {short_key(key)} occurs twice", begin)
        what = f"the metadata value {short_key(key)}"
        at = cursor.offset
        value, kind = read_value(cursor, what)
        if key == ALIGNMENT:
            alignment = _checked_alignment(cursor, value, kind, at)
        elif key == _JSON and kind == "str":
            data = value.encode(errors="surrogateescape")
            beside = parse_object(data, what, path=cursor.file.path, offset=at)
            if problem := nesting_problem(beside):
                raise cursor.error(f"{what} is {problem}", at)
            # The note is the reader's to make, and no writer puts it there.
            beside.pop(OWN, None)
        else:
            metadata[key] = value
            if kind != infer_type(value):
                types[key] = kind
    note = {key: value for key, value in (("alignment", alignment), ("types", types)) if value}
    split = {key: metadata[key] for key in SPLIT_KINDS if key in metadata}
    said = {key: (value, types.get(key, infer_type(value))) for key, value in split.items()}
    config, more = config_of(metadata), beside.get(CONFIG, {})
    metadata = {**metadata, **beside}
    if config and isinstance(more, dict):
        metadata[CONFIG] = {**config, **more}
    if note:
        metadata[OWN] = note
    return metadata, alignment or DEFAULT_ALIGNMENT, said


def _checked_alignment(cursor: ckptio.Cursor, value: Any, kind: str, at: int) -> int:
    if kind != "u32" or value < 1 or value & (value - 1):
        raise cursor.error(f"{ALIGNMENT} is {value!r} ({kind}), not a power of two (u32)", at)
    return int(value)


def pack_metadata(metadata: Mapping[str, Any], alignment: int | None) -> tuple[int, bytes]:
    """Return the number of values and their bytes; ``alignment`` is that of the data, if it is to be said."""
    types = note_of(metadata).get("types")
    types = {**SPLIT_KINDS, **(types if isinstance(types, Mapping) else {})}
    packed: dict[str, bytes] = {}
    beside: dict[str, Any] = {}
    for key, value in metadata.items():
        data = _packed(key, value, types.get(key)) if _can_be_key(key, value) else None
        if data is not None:
            packed[key] = data
        elif key != OWN:
            beside[key] = value
    # As the package does it: the architecture first, then the alignment.
    head = {key: packed.pop(key) for key in (ARCHITECTURE,) if key in packed}
    if alignment is not None:
        head[ALIGNMENT] = pack_value(alignment, "u32")
    if beside:
        packed[_JSON] = pack_value(json.dumps(beside, ensure_ascii=True, allow_nan=False), "str")
    values = {**head, **packed}
    return len(values), b"".join(pack_string(key) + value for key, value in values.items())


def metadata_problems(metadata: Mapping[str, Any]) -> list[Problem]:
    """Return what of the metadata cannot be written."""
    return [Problem(f"metadata.{key!a}", what) for key, what in _problems(metadata)]


def _problems(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in metadata.items():
        if key == OWN:
            continue
        try:
            key.encode()
            if _packed(key, value, None) is None:
                json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            yield key, "has a lone surrogate: it is not text"
        except (TypeError, ValueError, RecursionError) as error:
            yield key, f"is neither a value of GGUF nor JSON: {error}"


def _can_be_key(key: str, value: Any) -> bool:
    """Return whether a key can stand in the file: it does not mean something else there."""
    if key == SPLIT_COUNT and (type(value) is not int or value not in (0, 1)):
        return False
    return key not in ("", OWN, ALIGNMENT, _JSON) and len(key.encode()) <= _LONGEST_KEY


def _packed(key: str, value: Any, kind: Any) -> bytes | None:
    for each in (kind, infer_type(value)):
        if isinstance(each, str):
            try:
                return pack_value(value, each)
            except UnicodeEncodeError:
                raise
            except (ValueError, RecursionError):
                continue
    return None


def short_key(key: str) -> str:
    """Return a key or a name for a message."""
    return repr(key if len(key) <= 80 else key[:80] + "…")
