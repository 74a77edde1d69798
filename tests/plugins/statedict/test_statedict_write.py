"""What the plugin writes, read by the independent reader; and hand-made files of every kind, read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import ckptio
from ckptio import DType, MemoryCheckpoint, Output
from ckptio_statedict.format import StatedictFormat
from golden import all_golden, golden_id
from independent import KINDS, ckpt_file, read_ckpt, record

FORMAT = StatedictFormat()


def write(checkpoint: ckptio.Checkpoint, target: Path) -> None:
    assert FORMAT.check(checkpoint, {}) == []
    with Output(target) as out:
        FORMAT.write(checkpoint, out, {})
        out.finish()
        out.publish()


@pytest.mark.parametrize("path", all_golden("infinitrain/runs/**/*.ckpt"), ids=golden_id)
def test_a_copy_has_the_bytes_of_the_file(path: Path, tmp_path: Path) -> None:
    with FORMAT.open(path, {}) as checkpoint:
        write(checkpoint, tmp_path / "copy.ckpt")
    assert (tmp_path / "copy.ckpt").read_bytes() == path.read_bytes()


def test_the_layout_of_a_small_file(tmp_path: Path) -> None:
    tensors: dict[str, npt.NDArray[Any]] = {
        "w": np.array([[1.0, 2.0, 3.0]], np.float32),
        "adam.t": np.array(7, np.int64),
    }
    write(MemoryCheckpoint(tensors), tmp_path / "small.ckpt")
    assert (tmp_path / "small.ckpt").read_bytes() == b"".join(
        [
            bytes.fromhex("434b5054 01000000 02000000"),
            bytes.fromhex("01000000 77 0b 02000000 0100000000000000 0300000000000000 0c00000000000000"),
            bytes.fromhex("0000803f 00000040 00004040"),
            bytes.fromhex("06000000 6164616d2e74 08 00000000 0800000000000000 0700000000000000"),
        ]
    )


# The values 1 and 2 of each type, spelled as bytes by hand: IEEE 754, two's complement, bfloat16.
SPELLED = {
    "bool": "01 00",
    "u8": "01 02",
    "i8": "01 fe",
    "u16": "0100 ffff",
    "i16": "0100 feff",
    "u32": "01000000 ffffffff",
    "i32": "01000000 feffffff",
    "u64": "0100000000000000 ffffffffffffffff",
    "i64": "0100000000000000 feffffffffffffff",
    "bf16": "803f 00c0",
    "f16": "003c 00c0",
    "f32": "0000803f 000000c0",
    "f64": "000000000000f03f 00000000000000c0",
}
VALUES: dict[str, npt.NDArray[Any]] = {
    "bool": np.array([True, False]),
    "u8": np.array([1, 2], np.uint8),
    "i8": np.array([1, -2], np.int8),
    "u16": np.array([1, 2**16 - 1], np.uint16),
    "i16": np.array([1, -2], np.int16),
    "u32": np.array([1, 2**32 - 1], np.uint32),
    "i32": np.array([1, -2], np.int32),
    "u64": np.array([1, 2**64 - 1], np.uint64),
    "i64": np.array([1, -2], np.int64),
    "bf16": np.array([1, -2], ml_dtypes.bfloat16),
    "f16": np.array([1, -2], np.float16),
    "f32": np.array([1, -2], np.float32),
    "f64": np.array([1, -2], np.float64),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_both_ways(kind: str, tmp_path: Path) -> None:
    data, array, path = bytes.fromhex(SPELLED[kind]), VALUES[kind], tmp_path / "one.ckpt"
    path.write_bytes(ckpt_file(record(b"x", KINDS.index(kind), (2,), data=data)))
    with FORMAT.open(path, {}) as checkpoint:
        assert checkpoint.specs["x"].dtype is DType(kind)
        np.testing.assert_array_equal(checkpoint.read("x"), array, strict=True)
    path.unlink()
    write(MemoryCheckpoint({"x": array}), path)
    assert read_ckpt(path) == {"x": (kind, (2,), data)}


def test_the_dtypes_are_those_of_the_enum() -> None:
    assert {dtype.value for dtype in FORMAT.capabilities.dtypes} == set(KINDS)


def test_shapes_and_bits_at_the_edges(tmp_path: Path) -> None:
    bits = {
        "payload": np.array([0x7F800001, 0xFFC12345, 0x80000000, 1], np.uint32).view(np.float32),
        "half payload": np.array([0x7F81, 0x8000], np.uint16).view(ml_dtypes.bfloat16),
    }
    shapes = {
        "scalar": np.array(2.5, np.float64),
        "no rows": np.empty((0, 4), np.float32),
        "no columns": np.empty((3, 0), np.int8),
        "": np.ones((1, 1, 2, 1), np.bool_),
        "last and empty": np.empty(0, np.float16),
    }
    write(MemoryCheckpoint(bits | shapes), tmp_path / "edges.ckpt")
    found = read_ckpt(tmp_path / "edges.ckpt")
    assert list(found) == [*bits, *shapes]
    for name, array in (bits | shapes).items():
        assert (found[name].shape, found[name].data) == (array.shape, array.tobytes())
    assert struct.unpack("<4I", found["payload"].data) == (0x7F800001, 0xFFC12345, 0x80000000, 1)
    with FORMAT.open(tmp_path / "edges.ckpt", {}) as checkpoint:
        for name, stored in found.items():
            array = checkpoint.read(name)
            assert (array.shape, array.tobytes()) == (stored.shape, stored.data)


def test_odd_names_come_back(tmp_path: Path) -> None:
    names = ["a/b", "../../x", "/abs", "nul\0nul", "n" * 300, "Gewicht-ä-重み-🙂", "new\nline", " "]
    write(
        MemoryCheckpoint({name: np.full(1, i, np.uint8) for i, name in enumerate(names)}), tmp_path / "n.ckpt"
    )
    assert list(read_ckpt(tmp_path / "n.ckpt")) == names
    with FORMAT.open(tmp_path / "n.ckpt", {}) as checkpoint:
        assert [int(checkpoint.read(name)[0]) for name in names] == list(range(len(names)))
    assert [path.name for path in tmp_path.iterdir()] == ["n.ckpt"]


def test_no_tensors_at_all(tmp_path: Path) -> None:
    write(MemoryCheckpoint({}), tmp_path / "none.ckpt")
    assert (tmp_path / "none.ckpt").read_bytes() == bytes.fromhex("434b5054 01000000 00000000")
    with FORMAT.open(tmp_path / "none.ckpt", {}) as checkpoint:
        assert checkpoint.names() == []


def test_records_are_read_in_any_order_and_written_in_the_given_one(tmp_path: Path) -> None:
    records = [record(name, 1, (1,), data=name) for name in (b"c", b"a", b"b")]
    (tmp_path / "any.ckpt").write_bytes(ckpt_file(*records))
    with FORMAT.open(tmp_path / "any.ckpt", {}) as checkpoint:
        assert {name: bytes(checkpoint.read(name)) for name in "abc"} == {"a": b"a", "b": b"b", "c": b"c"}
    for target in ("one.ckpt", "two.ckpt"):
        write(MemoryCheckpoint({name: np.zeros(1) for name in "cab"}), tmp_path / target)
    assert list(read_ckpt(tmp_path / "one.ckpt")) == ["c", "a", "b"]
    assert (tmp_path / "one.ckpt").read_bytes() == (tmp_path / "two.ckpt").read_bytes()


def test_what_the_enum_lacks_is_refused_before_writing() -> None:
    tensors = {
        "fits": np.zeros(1),
        "f8": np.zeros(2, ml_dtypes.float8_e4m3fn),
        "c64": np.zeros((), np.complex64),
    }
    problems = FORMAT.check(MemoryCheckpoint(tensors), {})
    assert [(problem.where, problem.allow) for problem in problems] == [("f8", None), ("c64", None)]
    assert "f8_e4m3fn" in str(problems[0])


def test_a_name_that_is_no_text_is_refused_before_writing() -> None:
    (problem,) = FORMAT.check(MemoryCheckpoint({"half \ud83d": np.zeros(1)}), {})
    assert problem.where == r"'half \ud83d'"
    assert problem.allow is None


def test_first_stage_suffixes_are_read_and_not_claimed(tmp_path: Path) -> None:
    for name in ("model.bin", "model.pth"):
        path = tmp_path / name
        path.write_bytes(ckpt_file(record(b"w", 11, (1,), data=struct.pack("<f", 1.5))))
        with FORMAT.open(path, {}) as checkpoint:
            assert checkpoint.read("w").tolist() == [1.5]
    assert FORMAT.suffixes == (".ckpt",)
    assert set(FORMAT.magic) == {b"CKPT", b"AROL"}
