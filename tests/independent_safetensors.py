"""safetensors files made by hand, and the library as the judge of what is in a file."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import safetensors

Judged = dict[str, tuple[str, tuple[int, ...], bytes]]


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    """Return what a header says of one tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def pack(header: Any, data: bytes = b"") -> bytes:
    """Return a file of a header (JSON value, or bytes as they are) and its data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def judge(path: Path) -> Judged:
    """Return the dtype, shape and bytes of each tensor as the library sees them."""
    found = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    return {name: (each["dtype"], tuple(each["shape"]), bytes(each["data"])) for name, each in found}
