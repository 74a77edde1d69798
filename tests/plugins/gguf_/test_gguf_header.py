"""Headers of GGUF: metadata of every kind, and files made by hand that claim what is not so."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

import ckptio
from ckptio import CkptError, CorruptCheckpointError, UnsupportedError
from ckptio.testing.bounds import memory_bound, time_bound
from gguf_files import ARRAY, BOOL, F32, STRING, U8, U16, U32, file, head, tensor, text, value
from golden import golden

SOUND = file(head(1), tensor())
DEEP = struct.pack("<IQ", ARRAY, 1) * 10_000
HOSTILE: dict[str, tuple[bytes, str]] = {
    "no magic": (b"GGUX" + SOUND[4:], "expected b'GGUF'"),
    "2^63 tensors": (file(head(2**63), tensor()), "9223372036854775808 tensors cannot be"),
    "2^63 values": (file(head(1, 2**63), tensor()), "9223372036854775808 metadata values cannot be"),
    "a name of 4 GiB": (head(1) + struct.pack("<Q", 2**32) + bytes(60), "4294967296 bytes expected"),
    "2^33 by 2^33": (file(head(1), tensor(dims=(2**33, 2**33))), "larger than any array"),
    "more than the file": (file(head(1), tensor(dims=(2**33,))), "bytes are missing"),
    "2^32-1 dimensions": (head(1) + text(b"w") + b"\xff" * 40, "4294967295 dimensions"),
    "two of a name": (
        file(head(2), tensor(), tensor(offset=32), data=bytes(48)),
        "tensors are named 'w'",
    ),
    "two of a key": (file(head(0, 2), value(b"k", U8, b"1") * 2, data=b""), "key 'k' occurs twice"),
    "an offset elsewhere": (
        file(head(1), tensor(offset=32), data=bytes(48)),
        "begins at 32 .* 0 is exp",
    ),
    "bytes behind": (file(head(1), tensor(), data=bytes(33)), "17 bytes follow"),
    "an odd row": (file(head(1), tensor(dims=(33,), kind=8)), "rows of 33 are no multiple"),
    "alignment 0": (file(head(0, 1), value(b"general.alignment", U32, bytes(4))), "not a power of two"),
    "alignment 24": (file(head(0, 1), value(b"general.alignment", U32, b"\x18\0\0\0")), "not a power of two"),
    "alignment in u8": (file(head(0, 1), value(b"general.alignment", U8, b"\x20")), "not a power of two"),
    "a type of no value": (file(head(0, 1), value(b"k", 13, bytes(8))), "has the type 13"),
    "neither true nor false": (file(head(0, 1), value(b"k", BOOL, b"\2")), "neither 0 nor 1"),
    "an array too long": (
        file(head(0, 1), value(b"k", ARRAY, struct.pack("<IQ", U8, 2**62))),
        "claims 4611686018427387904 values",
    ),
    "arrays 10^4 deep": (file(head(0, 1), value(b"k", ARRAY, DEEP)), "arrays more than 32 deep"),
    "a key of no text": (file(head(0, 1), value(b"\xff", U8, b"1")), "a metadata key is not UTF-8"),
    "a name of no text": (file(head(1), tensor(name=b"\xff")), "the name of a tensor is not UTF-8"),
}
UNKNOWN = {
    "version 1": (file(head(1, version=1), tensor()), "version 1; read are"),
    "big-endian": (b"GGUF\0\0\0\3" + bytes(16), "big-endian"),
    "a type of no tensor": (file(head(1), tensor(kind=4)), "ggml's type 4, which is unknown"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.gguf"


def test_the_sound_file_is_sound(path: Path) -> None:
    """What the hostile ones differ from."""
    for version in (2, 3):
        path.write_bytes(file(head(1, version=version), tensor()))
        assert ckptio.load(path)["w"].tolist() == [0.0] * 4


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_soon_and_in_little_memory(kind: str, path: Path) -> None:
    content, why = HOSTILE[kind]
    path.write_bytes(content)
    with (
        time_bound(1.0, kind),
        memory_bound(4 << 20, kind),
        pytest.raises(CorruptCheckpointError, match=why) as caught,
    ):
        ckptio.open(path)
    assert "at byte" in str(caught.value)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_file_of_another_kind_is_refused_as_such(kind: str, path: Path) -> None:
    content, why = UNKNOWN[kind]
    path.write_bytes(content)
    with pytest.raises(UnsupportedError, match=why):
        ckptio.open(path)


def test_a_flipped_bit_or_a_cut_of_a_quantised_file_is_refused_or_read(path: Path) -> None:
    content = golden("gguf/mixed.gguf").read_bytes()
    header = 1216  # as its truth says
    outcomes = {"refused": 0, "read": 0}
    damaged = [content[:length] for length in range(0, len(content), 7)]
    for bit in range(0, 8 * header, 5):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for each in damaged:
        path.write_bytes(each)
        try:
            with ckptio.open(path, checkpoint_format="gguf") as checkpoint:
                for name, spec in checkpoint.specs.items():
                    assert checkpoint.read(name).nbytes == spec.nbytes
            outcomes["read"] += 1
        except CkptError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 1000
    assert outcomes["read"] > 100


METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "empty": "",
    "flag": False,
    "small": 7,
    "negative": -7,
    "large": 2**40,
    "huge": 2**63 + 1,
    "lowest": -(2**63),
    "half": 0.5,
    "tenth": 0.1,
    "flags": [True, False],
    "texts": ["", "ü"],
    "numbers": [1, -1],
    "floats": [0.5, 0.1],
    "none of them": [],
    "map": {"a": [1, None]},
    "nothing": None,
    "mixed": [1, "a"],
    "beyond": 2**64,
    "general.alignment": 3,
    "ckptio.metadata": "mine",
}


def test_metadata_of_every_kind_come_back_from_the_file_alone(path: Path) -> None:
    ckptio.save({"w": np.ones(3, "<f4")}, path, metadata=METADATA)
    assert list(path.parent.iterdir()) == [path]
    with ckptio.open(path) as checkpoint:
        assert dict(checkpoint.metadata) == METADATA
        kinds = {key: type(each) for key, each in checkpoint.metadata.items()}
    assert kinds == {key: type(each) for key, each in METADATA.items()}
    fields = GGUFReader(path).fields
    for key in ("empty", "flag", "small", "negative", "large", "huge", "lowest", "half", "tenth"):
        assert fields[key].contents() == METADATA[key]
    for key in ("flags", "texts", "numbers", "floats"):
        assert fields[key].contents() == METADATA[key]


def test_values_keep_their_types_and_bytes(path: Path) -> None:
    """Nested arrays, what is not finite, tokens that are no UTF-8, and integers wider than they need be."""
    values = [
        value(b"nan", F32, struct.pack("<f", float("nan"))),
        value(b"scores", ARRAY, struct.pack("<IQfff", F32, 3, 0.5, float("-inf"), 0.1)),
        value(b"tokens", ARRAY, struct.pack("<IQ", STRING, 2) + text(b"\xff\xfe") + text(b"a")),
        value(b"nested", ARRAY, struct.pack("<IQIQBBIQ", ARRAY, 2, U8, 2, 1, 2, U8, 0)),
        value(b"wide", 10, struct.pack("<Q", 5)),
        value(b"narrow", U16, struct.pack("<H", 5)),
        value(b"none", ARRAY, struct.pack("<IQ", STRING, 0)),
        value(b"bytes", ARRAY, struct.pack("<IQ", 1, 256) + bytes(range(256))),
    ]
    path.write_bytes(file(head(1, len(values)), *values, tensor()) + bytes(16))
    with ckptio.open(path) as checkpoint:
        assert checkpoint.metadata["nan"] == "nan"
        assert checkpoint.metadata["scores"][:2] == [0.5, "-inf"]
        assert checkpoint.metadata["nested"] == [[1, 2], []]
        assert checkpoint.metadata["bytes"] == [*range(128), *range(-128, 0)]
    ckptio.convert(path, path.with_name("b.gguf"))
    assert path.with_name("b.gguf").read_bytes() == path.read_bytes()


def test_metadata_that_are_no_text_are_refused(path: Path) -> None:
    for metadata in ({"k": "\ud800"}, {"\ud800": 1}, {"k": {"a": "\ud800"}}, {"k": float("nan")}):
        with pytest.raises(UnsupportedError, match="lone surrogate|neither a value of GGUF nor JSON"):
            ckptio.save({"w": np.ones(3, "<f4")}, path, metadata=metadata)
        assert not path.exists()
