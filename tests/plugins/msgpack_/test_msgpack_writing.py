"""What is written: the bytes of ``flax.serialization.msgpack_serialize`` for the same tree."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import flax.serialization
import ml_dtypes
import numpy as np
import pytest

from ckptio import Checkpoint, DType, MemoryCheckpoint, Span, TensorSpec, open_source
from ckptio.adapters import select
from ckptio.transforms import Cast
from ckptio_msgpack.format import MsgpackFormat
from ckptio_msgpack.writing import write_checkpoint

FORMAT = MsgpackFormat()
OPTIONS = {"chunk_bytes": 2**30}
Opened = Callable[[bytes], Checkpoint]
Written = Callable[..., bytes]
serialize = flax.serialization.msgpack_serialize
restore = flax.serialization.msgpack_restore


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.value)
def test_every_dtype_and_odd_shape_is_what_flax_writes(
    dtype: DType, opened: Opened, written: Written
) -> None:
    bits = np.arange(24 * dtype.itemsize, dtype=np.uint8) % 2
    arrays = {
        "empty": np.zeros((0, 4), dtype.numpy),
        "empty_last": np.zeros((0,), dtype.numpy),
        "full": bits.view(dtype.numpy).reshape(2, 3, 4),
        "zero_dim": bits[: dtype.itemsize].view(dtype.numpy).reshape(()),
    }
    scalar = bits[: dtype.itemsize].view(dtype.numpy)[0]
    expected = serialize({**arrays, "scalar": scalar})
    notes = {"msgpack": {"scalars": ["scalar"]}}
    data = written(MemoryCheckpoint({**arrays, "scalar": np.asarray(scalar)}, metadata=notes))
    assert data == expected
    assert type(restore(data)["scalar"]) is type(scalar)
    checkpoint = opened(data)
    assert checkpoint.metadata == notes
    for name, array in {**arrays, "scalar": np.asarray(scalar)}.items():
        assert checkpoint.specs[name] == TensorSpec(name, dtype, array.shape)
        assert checkpoint.read(name).tobytes() == array.tobytes()


def test_every_bit_of_special_floats_stays(opened: Opened, written: Written) -> None:
    patterns = {
        "f16": np.array([0x7E01, 0xFE00, 0x7D55, 0x8000, 0x0001, 0xFC00], "<u2").view("<f2"),
        "bf16": np.array([0x7FC1, 0xFFC0, 0x7F81, 0x8000, 0x0001], "<u2").view(ml_dtypes.bfloat16),
        "f32": np.array([0x7FC00001, 0x7F800001, 0x80000000, 1, 0xFF800000], "<u4").view("<f4"),
        "f64": np.array([0x7FF8000000000001, 0x7FF0000000000001, 1 << 63, 1], "<u8").view("<f8"),
    }
    data = written(MemoryCheckpoint(patterns))
    restored, checkpoint = restore(data), opened(data)
    for name, array in patterns.items():
        assert restored[name].tobytes() == array.tobytes() == checkpoint.read(name).tobytes()


def test_arrays_in_any_memory_order_are_written_in_c_order(written: Written) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    odd = {
        "big_endian": base.astype(">f4"),
        "broadcast": np.broadcast_to(np.array([1, 2], np.int16), (4, 2)),
        "fortran": np.asfortranarray(base),
        "strided": base[:, ::2],
        "transposed": base.T,
    }
    plain = {name: np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for name, array in odd.items()}
    assert written(MemoryCheckpoint(odd)) == serialize(plain)


def test_heads_have_the_widths_of_flax(written: Written) -> None:
    # An int8 array of n has a payload of n + 10 bytes and more: 6 is the one that fits a fixext 16.
    sizes = [*range(4, 9), *range(118, 130), *range(240, 260), *range(65515, 65540)]
    arrays = {f"{n:x}" + "k" * (n % 300): np.zeros(n, np.int8) for n in sizes}
    assert written(MemoryCheckpoint(arrays)) == serialize(arrays)
    for count in (15, 16, 300):
        few = {str(n): np.zeros(1, np.uint8) for n in range(count)}
        assert written(MemoryCheckpoint(few)) == serialize(few)


def test_keys_stand_in_code_point_order(written: Written) -> None:
    tree = {
        key: {"é": np.zeros(1), "z": np.ones(1), "~/": np.ones(2)}
        for key in ("\uff5a", "\U0001f600", "a", "Z", "10", "9", "")
    }
    names = {"é": "é", "z": "z", "~/": "~0~1"}
    flat = {f"{key}/{names[inner]}": array for key, node in tree.items() for inner, array in node.items()}
    assert written(MemoryCheckpoint(flat)) == serialize(tree)


LEAVES: dict[str, Any] = {
    "bools": [True, False, None],
    "bytes": b"\x00\xff" * 200,
    "complex": complex(-0.0, math.inf),
    "empty": {"list": [], "map": {}, "str": "", "bytes": b""},
    "floats": [math.inf, -math.inf, -0.0, 5e-324, 0.1],
    "ints": [2**64 - 1, -(2**63), 0, 127, 128, -32, -33, 65536, 2**32],
    "nested": [[1, [2.5, "x", [1j, {}]]], b"y"],
    "none": None,
    "text": "hé" * 100,
}


def test_plain_leaves_stand_in_their_place_and_come_back(opened: Opened, written: Written) -> None:
    tree = {"w": np.zeros(2), "leaves": LEAVES}
    checkpoint = opened(serialize(tree))
    assert list(checkpoint.specs) == ["w"]
    assert not checkpoint.metadata
    expected = {f"leaves/{key}": value for key, value in LEAVES.items() if key != "empty"}
    expected |= {f"leaves/empty/{key}": value for key, value in LEAVES["empty"].items()}
    assert checkpoint.leaves == expected
    assert repr(checkpoint.leaves["leaves/floats"]) == repr(LEAVES["floats"])
    assert repr(checkpoint.leaves["leaves/complex"]) == repr(LEAVES["complex"])
    assert written(checkpoint) == serialize(tree)


def test_a_nan_leaf_keeps_its_payload(opened: Opened, written: Written) -> None:
    bits = struct.pack(">d", struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0])
    data = written(MemoryCheckpoint({}, leaves={"x": struct.unpack(">d", bits)[0]}))
    assert data == b"\x81\xa1x\xcb" + bits
    assert struct.pack(">d", opened(data).leaves["x"]) == bits


def test_lists_of_arrays_go_under_their_indices_and_come_back(opened: Opened, written: Written) -> None:
    tree = {
        "a": [np.zeros(2), 7, [np.float32(1.5), {"x": np.ones(1)}], "text"],
        "b": {"0": np.zeros(1), "1": np.zeros(1)},
        "c": [{"k": 1}, []],
    }
    checkpoint = opened(serialize(tree))
    assert list(checkpoint.specs) == ["a/0", "a/2/0", "a/2/1/x", "b/0", "b/1"]
    assert checkpoint.leaves == {"a/1": 7, "a/3": "text", "c/0/k": 1, "c/1": []}
    assert checkpoint.metadata == {"msgpack": {"scalars": ["a/2/0"], "lists": {"a/2": 2, "a": 4, "c": 2}}}
    assert written(checkpoint) == serialize(tree)


def test_a_list_that_lost_an_element_is_a_map(opened: Opened, written: Written) -> None:
    checkpoint = opened(serialize({"a": [np.zeros(2), np.ones(3)], "b": [np.zeros(1)]}))
    tree = restore(written(select(checkpoint, ["a/1", "b/0"])))
    assert list(tree["a"]) == ["1"]
    assert type(tree["b"]) is list


@pytest.mark.parametrize(
    "notes",
    [
        None,
        3,
        {"scalars": 5, "lists": []},
        {"scalars": ["w", "gone", 3], "lists": {"w": 1, "~": 1, "v": None}},
    ],
)
def test_notes_that_make_no_sense_are_ignored(notes: Any, written: Written) -> None:
    arrays = {"w": np.zeros(2), "v/0": np.zeros(1)}
    checkpoint = MemoryCheckpoint(arrays, metadata={"msgpack": notes})
    assert written(checkpoint) == serialize({"w": arrays["w"], "v": {"0": arrays["v/0"]}})


@pytest.mark.parametrize(
    "names", [["a", "a/b"], ["~"], ["x~2", "y"], ["", "/"], ["/".join("k" * 600), "a/b"]], ids=repr
)
def test_names_that_do_not_nest_are_one_marked_map(
    names: list[str], opened: Opened, written: Written
) -> None:
    arrays = {name: np.full(2, index, np.int32) for index, name in enumerate(names)}
    checkpoint = MemoryCheckpoint(arrays, leaves={"leaf/~": [1, {}]})
    data = written(checkpoint)
    assert data == serialize({**arrays, "leaf/~": [1, {}], "__ckptio_flat__": True})
    again = opened(data)
    assert set(again.specs) == set(names)
    assert all(again.read(name)[0] == index for index, name in enumerate(names))
    assert again.leaves == {"leaf/~": [1, {}]}
    assert written(again) == data


def test_nesting_to_the_limit_is_written_and_read(opened: Opened, written: Written) -> None:
    name = "/".join("k" * 510)
    data = written(MemoryCheckpoint({name: np.zeros(4)}), 8)
    tree = restore(data)
    for _ in range(510):
        tree = tree["k"]
    assert tree.shape == (4,)
    assert list(opened(data).specs) == [name]


@pytest.mark.parametrize("limit", [1, 3, 16, 777, 1000])
def test_chunks_are_those_of_flax(
    limit: int, opened: Opened, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", limit)
    big = np.arange(37 * 29, dtype=np.float32).reshape(37, 29)
    tree = {
        "big": big,
        "bf16": np.arange(515).astype(ml_dtypes.bfloat16).reshape(5, 103),
        "empty": np.zeros((0, 3)),
        "in_list": [np.arange(400, dtype=np.int64), {"deeper": np.arange(300, dtype=np.int64)}],
        "nested": {"c128": np.arange(3, dtype=np.complex128)},
        "scalar": np.float64(2),
        "zero_dim": np.array(3.5),
    }
    expected = serialize(tree)
    checkpoint = opened(expected)
    assert checkpoint.specs["big"].shape == (37, 29)
    assert checkpoint.specs["zero_dim"].shape == ()
    assert checkpoint.read("big").tobytes() == big.tobytes()
    assert written(checkpoint, limit) == expected
    whole = opened(written(checkpoint))
    assert all(len(whole.spans(name) or ()) == 1 for name in whole.specs)
    assert written(whole, limit) == expected


def test_a_tensor_without_spans_is_chunked_too(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 1000)
    array = np.arange(5000, dtype=np.float32).reshape(50, 100)
    cast = Cast(MemoryCheckpoint({"w": array}), DType.BF16)
    assert written(cast, 1000) == serialize({"w": array.astype(ml_dtypes.bfloat16)})


class Sparse:
    """A sink that leaves holes where pieces of files would be copied to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("wb")

    def write(self, data: bytes | memoryview) -> None:
        self.file.write(data)

    def copy(self, span: Span) -> None:
        self.file.seek(span.length, os.SEEK_CUR)
        self.file.truncate()


def test_a_tensor_above_4_gib_is_written_in_chunks_and_read_as_one(tmp_path: Path) -> None:
    size = (5 << 30) + 8
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(size)

    class Huge(MemoryCheckpoint):
        @property
        def specs(self) -> Mapping[str, TensorSpec]:
            return {"w": TensorSpec("w", DType.F32, (size // 8, 2))}

        def spans(self, name: str) -> list[Span]:
            return [Span(opened_source, 0, size)]

    sink = Sparse(tmp_path / "target.msgpack")
    with open_source(source) as opened_source, sink.file:
        write_checkpoint(Huge({}), sink, 2**30)
        sink.file.truncate(sink.file.tell())
    opened_source.close()
    with FORMAT.open(sink.path, {}) as checkpoint:
        assert checkpoint.specs["w"].shape == (size // 8, 2)
        spans = checkpoint.spans("w") or ()
        assert [span.length for span in spans] == [2**30] * 5 + [8]
