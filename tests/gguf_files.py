"""GGUF files by hand, byte for byte, and what the package gguf finds in one."""

from __future__ import annotations

import struct
from pathlib import Path

from gguf import GGUFReader

U8, U16, U32, F32, BOOL, STRING, ARRAY = 0, 2, 4, 6, 7, 8, 9
I32 = 5


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def value(key: bytes, kind: int, data: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + data


def tensor(name: bytes = b"w", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def head(tensors: int = 0, values: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, values)


def file(*parts: bytes, data: bytes = bytes(16)) -> bytes:
    """Return a file of one header and of data that begins at a multiple of 32."""
    whole = b"".join(parts)
    return whole + bytes(-len(whole) % 32) + data


def raw(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Return what the package finds of each tensor: its type, its dimensions, its bytes in the file."""
    found = {}
    for each in GGUFReader(path).tensors:
        found[each.name] = (each.tensor_type.name, each.shape.tolist(), each.data.tobytes())
    return found
