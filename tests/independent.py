"""InfiniTrain's CKPT files by struct and numpy alone: the judge of the plugin, which shares no code with it.

Written after InfiniTrain's ``LoadStateDict``. `record` and `ckpt_file` make files by hand, wrong ones too.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

KINDS = ["bool", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "bf16", "f16", "f32", "f64"]
NUMPY = ["?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<u2", "<f2", "<f4", "<f8"]


class Stored(NamedTuple):
    """One tensor as it lies in a file."""

    kind: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def array(self) -> npt.NDArray[Any]:
        """The values; bf16 as its bits in uint16."""
        return np.frombuffer(self.data, NUMPY[KINDS.index(self.kind)]).reshape(self.shape)


def read_ckpt(path: Path) -> dict[str, Stored]:
    """Return every tensor of a sound CKPT file, in its order."""
    raw = path.read_bytes()
    magic, version, count = struct.unpack_from("<III", raw)
    assert (magic, version) == (0x54504B43, 1)
    at, found = 12, {}
    for _ in range(count):
        (length,) = struct.unpack_from("<I", raw, at)
        name = raw[at + 4 : at + 4 + length].decode()
        at += 4 + length
        code, ndim = struct.unpack_from("<bI", raw, at)
        *dims, nbytes = struct.unpack_from(f"<{ndim}qQ", raw, at + 5)
        at += 5 + 8 * ndim + 8
        found[name] = Stored(KINDS[code], tuple(dims), raw[at : at + nbytes])
        at += nbytes
    assert (len(found), at) == (count, len(raw))
    return found


def record(
    name: bytes, code: int = 11, dims: tuple[int, ...] = (), nbytes: int | None = None, data: bytes = b""
) -> bytes:
    """Return the bytes of one record; ``nbytes`` is what it claims (the length of ``data``)."""
    claimed = len(data) if nbytes is None else nbytes
    head = struct.pack("<I", len(name)) + name + struct.pack("<bI", code, len(dims))
    return head + struct.pack(f"<{len(dims)}qQ", *dims, claimed) + data


def ckpt_file(*records: bytes, magic: bytes = b"CKPT", version: int = 1, count: int | None = None) -> bytes:
    """Return the bytes of a file; ``count`` is what it claims (the number of ``records``)."""
    claimed = len(records) if count is None else count
    return magic + struct.pack("<II", version, claimed) + b"".join(records)
