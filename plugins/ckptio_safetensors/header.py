"""The header of a safetensors file, parsed within bounds and packed; the package describes the bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ckptio
from ckptio import DType, TensorSpec
from ckptio.jsontext import parse_object
from ckptio.limits import shape_problem

__all__ = [
    "DTYPES",
    "LARGEST_HEADER",
    "LENGTH",
    "METADATA",
    "SUFFIX",
    "Header",
    "in_order",
    "pack_header",
    "read_header",
]

SUFFIX = ".safetensors"
LENGTH = struct.Struct("<Q")
LARGEST_HEADER = 100_000_000
"""Bytes of JSON: safetensors' own limit."""
METADATA = "__metadata__"

_CODES: tuple[tuple[str, DType | None], ...] = (
    ("BOOL", DType.BOOL),
    ("F4", None),
    ("F6_E2M3", None),
    ("F6_E3M2", None),
    ("U8", DType.U8),
    ("I8", DType.I8),
    ("F8_E5M2", DType.F8_E5M2),
    ("F8_E4M3", DType.F8_E4M3FN),
    ("F8_E8M0", DType.F8_E8M0FNU),
    ("F8_E4M3FNUZ", DType.F8_E4M3FNUZ),
    ("F8_E5M2FNUZ", DType.F8_E5M2FNUZ),
    ("I16", DType.I16),
    ("U16", DType.U16),
    ("F16", DType.F16),
    ("BF16", DType.BF16),
    ("I32", DType.I32),
    ("U32", DType.U32),
    ("F32", DType.F32),
    ("C64", DType.C64),
    ("F64", DType.F64),
    ("I64", DType.I64),
    ("U64", DType.U64),
)
"""safetensors' enum ``Dtype`` in its order, which is that of its files, backwards; None: no whole bytes."""
DTYPES = {code: dtype for code, dtype in _CODES if dtype is not None}
_NO_CARRIER = {code for code, dtype in _CODES if dtype is None}
_RANK = {dtype: (rank, code) for rank, (code, dtype) in enumerate(_CODES) if dtype is not None}
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors in the order of their data, where in the file each begins, and ``__metadata__``."""

    specs: dict[str, TensorSpec]
    offsets: dict[str, int]
    metadata: dict[str, Any]


def in_order(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Return tensors in the order in which safetensors writes them: larger elements first, then by name."""
    return sorted(specs, key=lambda spec: (-_RANK[spec.dtype][0], spec.name))


def pack_header(specs: Iterable[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """Return all bytes before the data, for tensors that lie one after the other in the given order."""
    content: dict[str, Any] = {METADATA: metadata}
    end = 0
    for spec in specs:
        begin, end = end, end + spec.nbytes
        code = _RANK[spec.dtype][1]
        content[spec.name] = {"dtype": code, "shape": spec.shape, "data_offsets": (begin, end)}
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return LENGTH.pack(len(text)) + text


def read_header(file: ckptio.SourceFile) -> Header:
    """Return the header of a file, checked against its size to the last byte.

    Raises `CorruptCheckpointError` with the offset of what is wrong, and `UnsupportedError` that lists
    the tensors whose elements are no whole bytes (F4, F6).
    """
    cursor = ckptio.Cursor(file)
    (length,) = cursor.unpack(LENGTH, "the length of the header")
    if length > cursor.left:
        raise cursor.error(f"a header of {length} bytes cannot be in the {cursor.left} that follow", 0)
    if length > LARGEST_HEADER:
        raise cursor.error(f"a header of {length} bytes is more than the format's {LARGEST_HEADER}", 0)
    raw = cursor.take(length, "the header")
    if not raw.startswith(b"{"):
        raise cursor.error(f"expected '{{', found {raw[:1]!r}: not a safetensors file", LENGTH.size)
    content = parse_object(raw, "the header", path=file.path, offset=LENGTH.size)
    metadata = content.pop(METADATA, None)
    if metadata is not None and not isinstance(metadata, dict):
        raise cursor.error(f"{METADATA} is no JSON object", LENGTH.size)
    return Header(*_Tensors(cursor, raw).read(content), metadata or {})


class _Tensors:
    """The entries of a header, judged one by one and then together."""

    def __init__(self, cursor: ckptio.Cursor, raw: bytes) -> None:
        self._raw = raw
        self._cursor = cursor
        self._start = cursor.offset
        self._limits = ckptio.current_limits()

    def read(self, content: dict[str, Any]) -> tuple[dict[str, TensorSpec], dict[str, int]]:
        limit = self._limits.tensors
        if len(content) > limit:
            what = f"{len(content)} tensors are more than the limit of {limit}"
            raise self._cursor.error(what, LENGTH.size)
        self._refuse_part_bytes(content)
        found = []
        while content:
            # Each entry goes as its tensor comes: of a large header, one form alone is in memory.
            name, entry = content.popitem()
            found.append(self._tensor(name, entry))
        found.reverse()
        found.sort(key=lambda each: each[1:])
        end = 0
        for spec, begin, stop in found:
            if begin != end:
                what = "overlaps the one before" if begin < end else f"leaves a hole of {begin - end} bytes"
                raise self._error(spec.name, f"its data begins at {begin} and {what}", self._start + begin)
            end = stop
        if end != self._cursor.left:
            raise self._cursor.error(
                f"{self._cursor.left - end} bytes follow the last of {len(found)} tensors; expected none",
                self._start + end,
            )
        specs = {spec.name: spec for spec, _, _ in found}
        return specs, {spec.name: self._start + begin for spec, begin, _ in found}

    def _tensor(self, name: str, entry: Any) -> tuple[TensorSpec, int, int]:
        """Return a tensor, and where its data begins and ends."""
        match entry:
            case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
                pass
            case _:
                raise self._error(name, "not a dtype, a shape and two data_offsets")
        if code not in DTYPES:
            raise self._error(name, f"the dtype {code[:_SHOWN]!r} is unknown; known: {', '.join(DTYPES)}")
        if len(shape) > self._limits.dimensions:
            what = f"{len(shape)} dimensions are more than the limit of {self._limits.dimensions}"
            raise self._error(name, what)
        if not all(type(size) is int for size in (*shape, begin, end)):
            raise self._error(name, "a dimension or an offset is not an integer")
        dtype = DTYPES[code]
        problem = shape_problem(shape, dtype.itemsize)
        if problem:
            raise self._error(name, problem)
        if not 0 <= begin <= end <= self._cursor.left:
            raise self._error(
                name, f"data_offsets {begin} to {end} are not in {self._cursor.left} bytes of data"
            )
        spec = TensorSpec(name, dtype, tuple(shape))
        if end - begin != spec.nbytes:
            what = f"{end - begin} bytes of data, but {code} of shape {spec.shape} has {spec.nbytes}"
            raise self._error(name, what)
        return spec, begin, end

    def _refuse_part_bytes(self, content: Mapping[str, Any]) -> None:
        entries = [(name, entry.get("dtype")) for name, entry in content.items() if isinstance(entry, dict)]
        problems = [
            ckptio.Problem(name, f"dtype {code}: its elements are no whole bytes")
            for name, code in entries
            if isinstance(code, str) and code in _NO_CARRIER
        ]
        if problems:
            raise ckptio.UnsupportedError(f"{self._cursor.file.path}: cannot be read", problems)

    def _error(self, name: str, what: str, offset: int | None = None) -> ckptio.CorruptCheckpointError:
        label = repr(name if len(name) <= _SHOWN else name[:_SHOWN] + "…")
        if offset is None:
            quoted = json.dumps(name, ensure_ascii=False).encode()
            offset = LENGTH.size + max(0, self._raw.find(quoted + b":"))
        return self._cursor.error(f"{label}: {what}", offset)
