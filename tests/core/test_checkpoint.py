"""Checkpoints: arrays of any strides as little-endian C order, names and ties, reading as arrays."""

from __future__ import annotations

import hashlib
import mmap
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import ckptio
from ckptio import Checkpoint, DType, FileCheckpoint, MemoryCheckpoint, SourceFile, Span, TensorSpec

BASE = np.arange(12, dtype=np.float32).reshape(3, 4)
# Each array, and the bytes that it has in little-endian C order, spelled by struct from a list of numbers.
STRIDED: dict[str, tuple[npt.NDArray[Any], bytes]] = {
    "plain": (BASE, struct.pack("<12f", *range(12))),
    "fortran": (np.asfortranarray(BASE), struct.pack("<12f", *range(12))),
    "columns": (BASE[:, ::2], struct.pack("<6f", 0, 2, 4, 6, 8, 10)),
    "transposed": (BASE.T, struct.pack("<12f", 0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11)),
    "backwards": (BASE[::-1], struct.pack("<12f", 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3)),
    "broadcast": (np.broadcast_to(np.array([1, 2], "<i8"), (4, 2)), struct.pack("<8q", *[1, 2] * 4)),
    "big-endian": (BASE.astype(">f4"), struct.pack("<12f", *range(12))),
    "big-endian transposed": (np.array([[1, 2], [3, 4]], ">u2").T, struct.pack("<4H", 1, 3, 2, 4)),
    "big-endian 0-d": (np.array(258, ">i4"), struct.pack("<i", 258)),
    "big-endian complex": (np.array([1 + 2j], ">c8"), struct.pack("<2f", 1, 2)),
    "0-d": (np.array(2.5), struct.pack("<d", 2.5)),
    "empty": (np.empty((0, 4), np.int16), b""),
    "empty transposed": (np.empty((0, 4), np.int16).T, b""),
    "unaligned": (np.frombuffer(b"!" + struct.pack("<2f", 1, 2), "<f4", 2, 1), struct.pack("<2f", 1, 2)),
    "bfloat16": (np.array([[1, 2], [-2, 0]], ml_dtypes.bfloat16).T, bytes.fromhex("803f 00c0 0040 0000")),
    "bool": (np.array([[True, False], [True, True]]).T, b"\1\1\0\1"),
}


@pytest.mark.parametrize("max_bytes", [1, 8, 9, 1 << 22])
@pytest.mark.parametrize("name", STRIDED)
def test_any_strides_and_byte_order(name: str, max_bytes: int) -> None:
    array, expected = STRIDED[name]
    checkpoint = MemoryCheckpoint({name: array})
    spec = checkpoint.specs[name]
    assert (spec.shape, spec.nbytes, spec.size) == (array.shape, len(expected), array.size)
    chunks = list(checkpoint.chunks(name, max_bytes))
    assert b"".join(chunks) == expected
    assert all(0 < len(chunk) <= max(max_bytes, array.itemsize) for chunk in chunks)
    assert all(len(chunk) % array.itemsize == 0 for chunk in chunks)
    read = checkpoint.read(name)
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype.newbyteorder("<")
    assert read.dtype.isnative
    assert not np.shares_memory(read, array)


def test_chunks_of_a_strided_array_by_turns_and_again() -> None:
    array, expected = STRIDED["transposed"]
    checkpoint = MemoryCheckpoint({"x": array, "y": array[::-1]})
    one, other = checkpoint.chunks("x", 4), checkpoint.chunks("y", 4)
    pairs = list(zip(one, other, strict=True))
    assert b"".join(x for x, _ in pairs) == expected
    assert b"".join(y for _, y in pairs) == struct.pack("<12f", 3, 7, 11, 2, 6, 10, 1, 5, 9, 0, 4, 8)
    assert b"".join(checkpoint.chunks("x")) == expected


def test_bits_survive_a_change_of_byte_order() -> None:
    bits = [0x7F800001, 0xFFC12345, 0x80000000, 0x00000001]
    for order in "<>":
        array = np.frombuffer(struct.pack(f"{order}4I", *bits), f"{order}f4")
        assert b"".join(MemoryCheckpoint({"x": array}).chunks("x")) == struct.pack("<4I", *bits)


@pytest.mark.parametrize("dtype", list(DType))
def test_every_dtype_is_handed_out_as_it_is(dtype: DType) -> None:
    array = np.arange(4).astype(dtype.numpy)
    checkpoint = MemoryCheckpoint({"x": array})
    assert checkpoint.specs["x"] == TensorSpec("x", dtype, (4,))
    read = checkpoint.read("x")
    assert read.dtype == array.dtype
    assert read.tobytes() == array.tobytes()


@pytest.mark.parametrize("array", [np.array([None]), np.array(["text"]), np.array(["2020-01-01"], "M8[D]")])
def test_other_dtypes_are_refused(array: npt.NDArray[Any]) -> None:
    with pytest.raises(ckptio.OptionError, match="cannot be stored"):
        MemoryCheckpoint({"x": array})


def test_the_checkpoint_keeps_its_own_maps() -> None:
    tensors: dict[str, npt.NDArray[Any]] = {"x": np.zeros(1)}
    metadata: dict[str, Any] = {"config": {}}
    checkpoint = MemoryCheckpoint(tensors, metadata=metadata, leaves={"step": 3})
    tensors["y"] = np.zeros(1)
    metadata.clear()
    assert checkpoint.names() == ["x"]
    assert checkpoint.metadata == {"config": {}}
    assert checkpoint.leaves == {"step": 3}


# Names and ties


def test_aliases_are_names_and_not_stored_twice() -> None:
    with MemoryCheckpoint(
        {"wte": BASE, "b": np.ones(2)}, aliases={"lm_head": "wte", "head2": "wte"}
    ) as checkpoint:
        assert list(checkpoint.specs) == ["wte", "b"]
        assert checkpoint.names() == ["wte", "lm_head", "head2", "b"] == list(checkpoint)
        assert len(checkpoint) == 4
        assert "lm_head" in checkpoint
        assert "wte" in checkpoint
        assert "wpe" not in checkpoint
        assert checkpoint.canonical("head2") == "wte"
        np.testing.assert_array_equal(checkpoint.read("lm_head"), BASE)
        assert checkpoint.digest("lm_head") == hashlib.sha256(BASE.tobytes()).hexdigest()


def test_an_unknown_name_brings_the_nearest() -> None:
    checkpoint = MemoryCheckpoint({"lm_head.weight": BASE})
    for verb in (checkpoint.read, checkpoint.digest, checkpoint.canonical):
        with pytest.raises(KeyError, match=r"no tensor 'lm_head\.wieght'; did you mean 'lm_head\.weight'\?"):
            verb("lm_head.wieght")


def test_two_empty_tensors_are_no_tie() -> None:
    checkpoint = MemoryCheckpoint({"a": np.empty(0), "b": np.empty(0)})
    assert checkpoint.names() == ["a", "b"]
    assert not checkpoint.aliases


# Copying to a writer


class Collected:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[bytes | Span] = []

    def write(self, data: bytes | memoryview) -> None:
        self.pieces.append(bytes(data))

    def copy(self, span: Span) -> None:
        self.pieces.append(span)


def test_a_writer_is_given_bytes_or_pieces_of_files(tmp_path: Path) -> None:
    sink = Collected()
    memory = MemoryCheckpoint({"x": BASE.T}, aliases={"y": "x"})
    memory.copy_to("y", sink)
    assert sink.pieces == [STRIDED["transposed"][1]]
    with stored(tmp_path, 5) as checkpoint:
        sink = Collected()
        checkpoint.copy_to("x", sink)
        assert sink.pieces == [Span(checkpoint.file, 5, 48)]


# Reading as arrays


def stored(folder: Path, offset: int) -> FileCheckpoint:
    path = folder / "x.bin"
    path.write_bytes(b"\xff" * offset + BASE.tobytes())
    return FileCheckpoint(SourceFile(path), {"x": TensorSpec("x", DType.F32, (3, 4))}, {"x": offset})


@pytest.mark.parametrize("offset", [0, 8, 4096, 4100])
def test_an_aligned_piece_is_mapped_on_request(tmp_path: Path, offset: int) -> None:
    with stored(tmp_path, offset) as checkpoint:
        mapped, copied = checkpoint.read("x", mmap=True), checkpoint.read("x")
    np.testing.assert_array_equal(mapped, BASE, strict=True)
    assert not mapped.flags.writeable
    np.testing.assert_array_equal(copied, BASE, strict=True)
    assert copied.flags.writeable


@pytest.mark.parametrize("offset", [1, 6, 4098])
def test_an_unaligned_piece_is_copied(tmp_path: Path, offset: int) -> None:
    with stored(tmp_path, offset) as checkpoint:
        array = checkpoint.read("x", mmap=True)
    np.testing.assert_array_equal(array, BASE, strict=True)
    assert array.flags.aligned
    assert array.flags.writeable


@pytest.mark.parametrize("error", [OSError(19, "No such device"), ValueError("cannot mmap")])
def test_where_maps_fail_ordinary_reads_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried = []

    def refuse(*args: object, **options: object) -> None:
        tried.append(args)
        raise error

    monkeypatch.setattr(mmap, "mmap", refuse)
    with stored(tmp_path, 8) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read("x", mmap=True), BASE, strict=True)
    assert tried


def test_a_map_of_a_cut_file_is_an_error_and_no_crash(tmp_path: Path) -> None:
    with stored(tmp_path, 0) as checkpoint:
        (tmp_path / "x.bin").write_bytes(b"")
        with pytest.raises(ckptio.ChangedCheckpointError):
            checkpoint.read("x", mmap=True)


def test_an_empty_tensor_cannot_be_mapped_and_need_not(tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"")
    spec = TensorSpec("x", DType.BF16, (0, 3))
    with FileCheckpoint(SourceFile(tmp_path / "none"), {"x": spec}, {"x": 0}) as checkpoint:
        assert checkpoint.read("x", mmap=True).shape == (0, 3)


def test_a_big_endian_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    checkpoint = MemoryCheckpoint({"x": BASE})
    with pytest.raises(ckptio.UnsupportedError, match="little-endian"):
        checkpoint.read("x")


class Wrong(Checkpoint):
    """A reader with a fault: it gives ``count`` of the 16 bytes."""

    def __init__(self, count: int) -> None:
        self._count = count

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {"x": TensorSpec("x", DType.F32, (4,))}

    def chunks(self, name: str, max_bytes: int = 8) -> Iterator[memoryview]:
        for start in range(0, self._count, 8):
            yield memoryview(bytes(min(8, self._count - start)))


@pytest.mark.parametrize("count", [0, 8, 12, 20, 24])
def test_a_reader_of_too_few_or_many_bytes_is_at_fault(count: int) -> None:
    with pytest.raises(ckptio.PluginError, match=f"x: the reader gave {count} bytes instead of 16"):
        Wrong(count).read("x")
    assert Wrong(16).read("x").tolist() == [0.0] * 4


def test_a_spec_in_words_is_parsed_or_refused() -> None:
    spec = TensorSpec.parse("x", "bf16", [2, 3])
    assert spec == TensorSpec("x", DType.BF16, (2, 3)) == TensorSpec.parse("x", "bfloat16", (2, 3))
    for dtype, shape, words in [
        ("f17", [1], "unknown dtype 'f17'"),
        (None, [1], "no dtype and shape"),
        ("f32", 3, "no dtype and shape"),
        ("f32", [1, "2"], "not all integers"),
        ("f32", [True], "not all integers"),
        ("f32", [-1], "negative"),
        ("f32", [2**40, 2**40], "larger than any array"),
        ("f32", [1] * 65, "more than 64 dimensions"),
    ]:
        with pytest.raises(ValueError, match=words):
            TensorSpec.parse("x", dtype, shape)
