"""Damaged and hostile files: one clear error, in no time, and no memory to speak of."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import msgpack
import numpy as np
import pytest

import ckptio
from ckptio import (
    Checkpoint,
    CkptError,
    CorruptCheckpointError,
    UnsupportedError,
    raised_limits,
)
from ckptio_msgpack.format import MsgpackFormat
from golden import golden

FORMAT = MsgpackFormat()
Opened = Callable[[bytes], Checkpoint]
SMALL = ("flax/list_tuple_to_bytes.msgpack", "flax/mixed_msgpack_serialize.msgpack")


def array(shape: Any = (2,), dtype: Any = "uint8", data: Any = b"ab", *, code: int = 1) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb((shape, dtype, data)))


def chunked(**changes: Any) -> dict[str, Any]:
    parts = {"shape": {"0": 2, "1": 2}, "chunks": {"0": array(), "1": array()}, **changes}
    return {"__msgpack_chunked_array__": True} | {key: part for key, part in parts.items() if part is not ...}


@pytest.mark.parametrize("name", SMALL)
def test_a_file_cut_anywhere_is_corrupt(name: str, opened: Opened) -> None:
    data = golden(name).read_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptCheckpointError) as caught:
            opened(data[:length])
        assert caught.value.offset is not None
        assert 0 <= caught.value.offset <= length
        assert f"at byte {caught.value.offset}" in str(caught.value)


@pytest.mark.parametrize("name", SMALL)
def test_a_flipped_bit_is_an_error_or_a_file_that_adds_up(name: str, tmp_path: Path) -> None:
    data = golden(name).read_bytes()
    path = tmp_path / "flipped.msgpack"
    refused = 0
    for bit in range(min(2048, 8 * len(data))):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            checkpoint = FORMAT.open(path, {})
        except CkptError:
            refused += 1
            continue
        with checkpoint:
            end = 0
            spans = [span for name in checkpoint.specs for span in checkpoint.spans(name) or ()]
            for span in sorted(spans, key=lambda span: span.offset):
                assert span.offset >= end
                end = span.offset + span.length
            assert end <= len(data)
    assert refused > 100


MAP_OF_A = b"\x81\xa1a"
CLAIMS = {
    "map": b"\xdf\xff\xff\xff\xff\xa1a\x01",
    "map16": b"\x81\xa1a\xde\xff\xff\xa1b",
    "list": MAP_OF_A + b"\xdd\xff\xff\xff\xff\x01",
    "str": MAP_OF_A + b"\xdb\xff\xff\xff\xffx",
    "key": b"\x81\xdb\xff\xff\xff\xffx",
    "bin": MAP_OF_A + b"\xc6\xff\xff\xff\xffx",
    "ext": MAP_OF_A + b"\xc9\xff\xff\xff\xff\x01\x93",
    "elements": MAP_OF_A + b"\xc7\x0f\x01\x93\x91\x02\xa5uint8\xc6\xff\xff\xff\xff",
    "sizes": MAP_OF_A + b"\xc7\x0a\x01\x93\xdd\xff\xff\xff\xff\x01\x01\x01\x01",
    "huge product": msgpack.packb({"a": array((2**33, 2**33))}),
    "huge and empty": msgpack.packb({"a": array((2**63, 0), data=b"")}),
    "negative": msgpack.packb({"a": array((-1, -2))}),
    "65 dimensions": msgpack.packb({"a": array((1,) * 65, data=b"a")}),
}


@pytest.mark.parametrize("data", CLAIMS.values(), ids=CLAIMS)
def test_a_length_that_claims_too_much_is_corrupt(data: bytes, opened: Opened) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError, match="at byte"):
            opened(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("level", [b"\x81\xa1k", b"\x91"], ids=["maps", "lists"])
def test_nesting_without_end_is_corrupt(level: bytes, opened: Opened) -> None:
    with pytest.raises(CorruptCheckpointError, match="nested more than 512 deep"):
        opened(MAP_OF_A + level * 10_000 + b"\xc0")
    with raised_limits(nesting=20_000):
        if level == b"\x91":
            with pytest.raises(CorruptCheckpointError, match="nested more than 500 deep"):
                opened(MAP_OF_A + level * 10_000 + b"\xc0")
        else:
            assert opened(MAP_OF_A + level * 10_000 + b"\xc0").leaves == {"/".join("a" + "k" * 10_000): None}


def resized(data: bytes, change: int, where: int) -> bytes:
    changed = bytearray(data)
    changed[where] += change
    return bytes(changed)


@pytest.mark.parametrize("change", [-2, -1, 1, 2])
def test_lengths_that_disagree_are_corrupt(change: int, opened: Opened) -> None:
    sound = flax.serialization.msgpack_serialize({"a": np.zeros(3, np.int64), "b": 1j})
    assert list(opened(sound).specs) == ["a"]
    ext, inner = sound.index(b"\xc7") + 1, sound.index(b"\xc4\x18") + 1
    for where in (ext, inner, sound.index(b"\x91\x03") + 1):
        with pytest.raises(CorruptCheckpointError, match="'a'"):
            opened(resized(sound, change, where))
    with pytest.raises(CorruptCheckpointError):
        opened(resized(sound, change, sound.rindex(b"\xc7") + 1))


CORRUPT: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "ends inside"),
    "list as root": (msgpack.packb([1, 2]), "a flax checkpoint is a map"),
    "number as root": (b"{}", "a flax checkpoint is a map"),
    "trailing bytes": (msgpack.packb({"a": 1}) + b"\x00", "1 bytes follow"),
    "key twice": (b"\x82\xa1a\x01\xa1a\x02", "twice in one map, in 'a'"),
    "byte c1": (MAP_OF_A + b"\xc1", "0xc1"),
    "text": (MAP_OF_A + b"\xa1\xff", "UTF-8"),
    "key text": (b"\x81\xa1\xff\x01", "UTF-8"),
    "complex of one": (msgpack.packb({"a": msgpack.ExtType(2, msgpack.packb((1.0,)))}), "complex"),
    "complex of text": (msgpack.packb({"a": msgpack.ExtType(2, msgpack.packb((1.0, "x")))}), "complex"),
    "pair": (msgpack.packb({"a": msgpack.ExtType(1, msgpack.packb(((2,), "uint8")))}), "not \\(shape"),
    "no array": (msgpack.packb({"a": msgpack.ExtType(1, b"\xc0")}), "not \\(shape"),
    "shape of text": (msgpack.packb({"a": array("2")}), "shape is not a list"),
    "shape of texts": (msgpack.packb({"a": array(("xx",))}), "a str value in its shape"),
    "shape of floats": (msgpack.packb({"a": array((2.0,))}), "not made of integers"),
    "shape of bools": (msgpack.packb({"a": array((True, 2))}), "not made of integers"),
    "dtype of number": (msgpack.packb({"a": array(dtype=5)}), "dtype is not a name"),
    "data of list": (msgpack.packb({"a": array(data=[1, 2])}), "elements are a list"),
    "scalar with shape": (msgpack.packb({"a": array(code=3)}), "numpy scalar of shape"),
    "flat map of maps": (msgpack.packb({"__ckptio_flat__": True, "a": {"b": 1}}), "marked __ckptio_flat__"),
    "chunked without shape": (msgpack.packb({"a": chunked(shape=...)}), "shape and its chunks, in 'a'"),
    "chunked without chunks": (msgpack.packb({"a": chunked(chunks={})}), "shape and its chunks"),
    "chunked and more": (msgpack.packb({"a": chunked(more=1)}), "shape and its chunks"),
    "chunk missing": (msgpack.packb({"a": chunked(chunks={"0": array(), "2": array()})}), "shape and its"),
    "chunks too few": (msgpack.packb({"a": chunked(chunks={"0": array()})}), "do not add up"),
    "chunks of numbers": (msgpack.packb({"a": chunked(chunks={"0": 1, "1": 2})}), "not 1-D arrays"),
    "chunks of 2-D": (msgpack.packb({"a": chunked(chunks={"0": array((2, 2), data=b"abcd")})}), "not 1-D"),
    "chunks of two dtypes": (
        msgpack.packb({"a": chunked(chunks={"0": array(), "1": array(dtype="int8")})}),
        "one dtype",
    ),
    "chunked shape of text": (msgpack.packb({"a": chunked(shape={"0": "x"})}), "not made of integers"),
    "chunked negative": (msgpack.packb({"a": chunked(shape={"0": -2, "1": -2})}), "negative"),
}


@pytest.mark.parametrize(("data", "reason"), CORRUPT.values(), ids=CORRUPT)
def test_what_is_not_a_sound_checkpoint_is_corrupt(data: bytes, reason: str, opened: Opened) -> None:
    with pytest.raises(CorruptCheckpointError, match=reason):
        opened(data)


UNSUPPORTED: dict[str, tuple[bytes, str]] = {
    "int key": (msgpack.packb({"a": {7: 1}}), r"the key 7; only strings .*\(at byte 4\), in 'a'"),
    "bytes key": (msgpack.packb({b"k": 1}), "a bin value as a key"),
    "nil key": (b"\x81\xc0\x01", "the key None"),
    "timestamp": (msgpack.packb({"a": msgpack.Timestamp(1, 0)}), r"a timestamp.*\(at byte 3\), in 'a'"),
    "ext 5": (msgpack.packb({"a": {"b": msgpack.ExtType(5, b"xyz")}}), "ext type 5.*in 'a/b'"),
    "ext -5": (MAP_OF_A + b"\xd4\xfb\x00", "ext type -5"),
    "bare array": (msgpack.packb(array()), "one array without a name"),
    "bare chunked array": (msgpack.packb(chunked()), "one array without a name"),
    **{
        f"dtype {dtype}": (msgpack.packb({"a": array(dtype=dtype)}), f"dtype '{dtype}'.*in 'a'")
        for dtype in ("V2", "void16", "object", ">f4", "int4", "datetime64")
    },
}


@pytest.mark.parametrize(("data", "reason"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_is_valid_but_not_for_us_is_refused_by_name(data: bytes, reason: str, opened: Opened) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        opened(data)


def test_chunks_in_any_order_of_keys_are_joined(opened: Opened) -> None:
    node = {"chunks": {"1": array(data=b"cd"), "0": array()}, "shape": {"1": 4, "0": 1}}
    checkpoint = opened(msgpack.packb({"a": {**node, "__msgpack_chunked_array__": True}}))
    assert checkpoint.specs["a"].shape == (1, 4)
    assert checkpoint.read("a").tobytes() == b"abcd"


def test_every_encoding_of_a_length_is_read(opened: Opened) -> None:
    payload = (
        b"\xdd\0\0\0\x03" + b"\xdc\0\x01\xd3" + bytes(7) + b"\x02" + b"\xd9\x05uint8" + b"\xc6\0\0\0\x02ab"
    )
    ext = b"\xc9" + len(payload).to_bytes(4, "big") + b"\x01" + payload
    checkpoint = opened(b"\xdf\0\0\0\x01\xdb\0\0\0\x01a" + ext)
    assert checkpoint.specs["a"].shape == (2,)
    assert checkpoint.read("a").tobytes() == b"ab"


def test_more_arrays_than_the_limit_are_refused(opened: Opened) -> None:
    data = msgpack.packb({str(index): array() for index in range(9)})
    with raised_limits(tensors=8), pytest.raises(CorruptCheckpointError, match="more than 8 arrays"):
        opened(data)
    with raised_limits(tensors=9):
        assert len(opened(data).specs) == 9


@pytest.mark.parametrize(
    "value", [b"\x80", b"\x90", b"\x81\xa0\x00"], ids=["no entry", "no element", "an entry"]
)
def test_a_flood_of_tiny_values_is_refused(value: bytes, opened: Opened) -> None:
    # Each takes up to a hundred times its bytes in memory, so the limit is far below the file's.
    data = MAP_OF_A + b"\xdd" + (3_000).to_bytes(4, "big") + value * 3_000
    with raised_limits(tensors=4_000), pytest.raises(CorruptCheckpointError, match="more than 1000 maps"):
        opened(data)


def test_one_long_key_over_many_arrays_does_not_fill_the_memory(opened: Opened) -> None:
    # 60 KiB of key, repeated in 2,000 names, would be 120 MB out of a file of 100 KB.
    tree = {"k" * 60_000: {str(index): array() for index in range(2_000)}}
    with pytest.raises(CorruptCheckpointError, match="names of the tensors are much larger"):
        opened(msgpack.packb(tree))


def test_a_list_is_no_map_of_chunks(opened: Opened) -> None:
    with pytest.raises(CorruptCheckpointError, match="shape and its chunks"):
        opened(msgpack.packb({"a": chunked(chunks=[array(), array()])}))


@pytest.mark.parametrize("claimed", [2_000, 2**32 - 1])
def test_longer_lists_than_the_limit_are_refused_at_their_heads(tmp_path: Path, claimed: int) -> None:
    # Two lists below the limit that together are above it count too; the file is as large as it claims.
    head = b"\x81\xa1a\x92\xdc\x02\x00" + bytes(512) + b"\xdd" + claimed.to_bytes(4, "big")
    path = tmp_path / "list.msgpack"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + claimed)
    with (
        raised_limits(tensors=512 + 2 + 1_999),
        pytest.raises(CorruptCheckpointError, match="lists of more than 2513 elements") as caught,
    ):
        ckptio.open(path)
    assert caught.value.offset == len(head) - 5
    if claimed == 2_000:
        with raised_limits(tensors=4 * (512 + 2 + 2_000)), ckptio.open(path) as checkpoint:
            assert checkpoint.leaves == {"a": [[0] * 512, [0] * 2_000]}
