"""Zip archives written: judged by zipfile, by torch's reader and by arithmetic."""

from __future__ import annotations

import contextlib
import os
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from ckptio import DType, MemoryCheckpoint, Output, PluginError, SourceFile, TensorSpec
from ckptio.archive import ZipArchive, ZipWriter, entry_name_problem
from ckptio.archive import writing as archive_writer
from ckptio.archive.layout import MAX16, MAX32
from ckptio.checkpoint import Checkpoint
from ckptio.crc import shifted_crc32
from ckptio.output_file import OutputFile

LONG = np.random.default_rng(0).integers(0, 256, 300_001, np.uint8)
SHORT = np.arange(5, dtype="<f4")


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Checkpoint]:
    """A checkpoint in a file, so that its tensors have spans."""
    path = tmp_path / "source.ckpt"
    ckptio.save({"long": LONG, "short": SHORT}, path, checkpoint_format="statedict")
    with ckptio.open(path, checkpoint_format="statedict") as checkpoint:
        yield checkpoint


@contextlib.contextmanager
def writing(path: Path) -> Iterator[ZipWriter]:
    with Output(path) as output:
        writer = ZipWriter(output.create())
        yield writer
        writer.finish()
        output.finish()
        output.publish()


def write_all(path: Path, source: Checkpoint) -> None:
    memory = MemoryCheckpoint({"turned": LONG[:300_000].reshape(3, -1).T, "none": np.zeros((0, 3))})
    with writing(path) as writer:
        writer.add("first", b"hello")
        writer.add_tensor("é/long", source, "long", prefix=b"abc")
        writer.add_tensor("short", source, "short")
        writer.add_tensor("turned", memory, "turned", align=4096)
        writer.add_tensor("none", memory, "none")


EXPECTED = {
    "first": b"hello",
    "é/long": b"abc" + LONG.tobytes(),
    "short": SHORT.tobytes(),
    "turned": np.ascontiguousarray(LONG[:300_000].reshape(3, -1).T).tobytes(),
    "none": b"",
}


def judge(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == EXPECTED
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive_writer._WIDE < MAX32 or {info.extract_version for info in archive.infolist()} == {20}
    with contextlib.closing(SourceFile(path)) as file:
        entries = ZipArchive(file).entries
        assert list(entries) == list(EXPECTED)
        assert (entries["é/long"].offset + 3) % 64 == 0
        assert entries["short"].offset % 64 == 0
        assert entries["turned"].offset % 4096 == 0


@pytest.mark.parametrize("beside", [1000, 1 << 20], ids=["second thread", "one thread"])
def test_zipfile_reads_what_is_written(
    beside: int, source: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_writer, "_BESIDE", beside)
    write_all(tmp_path / "a.zip", source)
    judge(tmp_path / "a.zip")


def test_equal_input_gives_equal_bytes(source: Checkpoint, tmp_path: Path) -> None:
    write_all(tmp_path / "a.zip", source)
    write_all(tmp_path / "b.zip", source)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


@pytest.mark.parametrize(("wide", "many"), [(4, MAX16), (1000, MAX16), (MAX32, 5), (MAX32, 6), (200_000, 3)])
def test_zip64_wherever_the_threshold_is(
    wide: int, many: int, source: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_writer, "_WIDE", wide)
    monkeypatch.setattr(archive_writer, "_MANY", many)
    write_all(tmp_path / "a.zip", source)
    judge(tmp_path / "a.zip")
    locators = (tmp_path / "a.zip").read_bytes().count(b"PK\x06\x07")
    assert locators == (many != 6)


class Hole(Checkpoint):
    """A tensor of zeros that are never written: its copy leaves a hole in the file."""

    size = (5 << 30) + 1

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {"hole": TensorSpec("hole", DType.U8, (self.size,))}

    def chunks(self, name: str, max_bytes: int = 1) -> Iterator[memoryview]:
        raise NotImplementedError

    def crc32(self, name: str) -> int:
        return 0x12345678

    def copy_to(self, name: str, out: Any) -> None:
        out.position += self.size


class Sparse:
    """An output that is written by position, so that holes stay holes."""

    def __init__(self, fd: int) -> None:
        self.fd, self.position = fd, 0

    def tell(self) -> int:
        return self.position

    def write(self, data: bytes) -> None:
        self.position += os.pwrite(self.fd, data, self.position)


def test_entries_beyond_4_gib(tmp_path: Path) -> None:
    path = tmp_path / "large.zip"
    with open(path, "wb", buffering=0) as file:
        writer = ZipWriter(Sparse(file.fileno()))  # type: ignore[arg-type]
        writer.add_tensor("large", Hole(), "hole")
        writer.add("behind", b"hello")
        writer.finish()
    assert path.stat().st_size > Hole.size
    with zipfile.ZipFile(path) as archive:
        assert [(info.filename, info.file_size, info.CRC) for info in archive.infolist()] == [
            ("large", Hole.size, 0x12345678),
            ("behind", 5, zlib.crc32(b"hello")),
        ]
        assert {info.extract_version for info in archive.infolist()} == {45}
        assert archive.read("behind") == b"hello"
    with contextlib.closing(SourceFile(path)) as file:
        entries = ZipArchive(file).entries
        assert entries["large"].size == Hole.size
        assert entries["large"].offset % 64 == 0
        assert file.read_at(entries["behind"].offset, 5) == b"hello"


def test_torch_reads_and_maps_what_is_written(source: Checkpoint, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    with writing(path) as writer:
        writer.add("a/version", b"3\n")
        writer.add_tensor("a/data/0", source, "short")
    reader = torch._C.PyTorchFileReader(str(path))
    assert reader.get_record("data/0") == SHORT.tobytes()
    with contextlib.closing(SourceFile(path)) as file:
        assert reader.get_record_offset("data/0") == ZipArchive(file).entries["a/data/0"].offset


# Checksums


class Stated(MemoryCheckpoint):
    """A checkpoint that states a CRC."""

    stated = 0xDEADBEEF

    def crc32(self, name: str) -> int:
        return self.stated


@pytest.mark.parametrize("prefix", [b"", b"header"])
def test_a_checksum_that_is_known_is_taken_over(prefix: bytes, tmp_path: Path) -> None:
    checkpoint = Stated({"t": LONG})
    with writing(tmp_path / "wrong.zip") as writer:
        writer.add_tensor("t", checkpoint, "t", prefix=prefix)
    with zipfile.ZipFile(tmp_path / "wrong.zip") as archive:
        assert archive.testzip() == "t", "the source's damage would have been sealed"
    checkpoint.stated = zlib.crc32(LONG.tobytes())
    with writing(tmp_path / "right.zip") as writer:
        writer.add_tensor("t", checkpoint, "t", prefix=prefix)
    with zipfile.ZipFile(tmp_path / "right.zip") as archive:
        assert archive.read("t") == prefix + LONG.tobytes()


@pytest.mark.parametrize("length", [0, 1, 2, 127, 65_536, 300_001])
def test_the_checksum_of_a_whole_follows_from_its_parts(length: int) -> None:
    one, other = LONG[:77].tobytes(), LONG[:length].tobytes()
    shifted = shifted_crc32(zlib.crc32(one), length)
    assert zlib.crc32(one + other) == shifted ^ zlib.crc32(other)
    assert shifted_crc32(zlib.crc32(one), 0) == zlib.crc32(one)


def test_an_interrupt_ends_the_second_thread_too(
    source: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_writer, "_BESIDE", 10)
    before, stopped = threading.active_count(), []

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def endless(span: object, crc: int, stop: threading.Event) -> int:
        stopped.append(stop.wait(10))
        return crc

    monkeypatch.setattr(OutputFile, "copy", interrupted)
    monkeypatch.setattr(archive_writer, "_crc_of", endless)
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / "a.zip") as writer:
        writer.add_tensor("long", source, "long")
    assert stopped == [True]
    assert threading.active_count() == before
    assert [path.name for path in tmp_path.iterdir()] == ["source.ckpt"]


def test_a_second_thread_that_is_told_to_stop_reads_no_further(source: Checkpoint) -> None:
    (span,) = source.spans("long") or ()
    stop = threading.Event()
    assert archive_writer._crc_of(span, 0, stop) == zlib.crc32(LONG.tobytes())
    stop.set()
    assert archive_writer._crc_of(span, 5, stop) == 5


# What cannot be written


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 65_536, "é" * 32_768])
def test_names_that_no_entry_can_have(name: str, tmp_path: Path) -> None:
    assert entry_name_problem(name)
    with pytest.raises(ValueError, match="name"), writing(tmp_path / "a.zip") as writer:
        writer.add(name, b"")


def test_the_longest_name_and_one_that_is_taken(tmp_path: Path) -> None:
    longest = "é" * 32_767 + "x"
    assert entry_name_problem(longest) is None
    with writing(tmp_path / "a.zip") as writer:
        writer.add(longest, b"1")
        with pytest.raises(ValueError, match="already"):
            writer.add(longest, b"1")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == [longest]


class Broken(MemoryCheckpoint):
    """A reader that gives one byte too few."""

    def chunks(self, name: str, max_bytes: int = 1 << 20) -> Iterator[memoryview]:
        for chunk in super().chunks(name, max_bytes):
            yield chunk[:-1]


def test_a_reader_that_gives_too_little_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(PluginError, match="t: the reader gave 19 bytes"),
        writing(tmp_path / "a.zip") as writer,
    ):
        writer.add_tensor("t", Broken({"t": SHORT}), "t", prefix=b"abc")
    assert not list(tmp_path.iterdir())


# Putting right what was written before


@pytest.mark.parametrize("gap", [0, 900_000, 2 << 20], ids=["pending", "half pending", "on the disk"])
@pytest.mark.parametrize("at", [0, 999_998, 1_000_000, 1_100_000])
def test_patches_reach_the_disk_and_what_is_pending(gap: int, at: int, tmp_path: Path) -> None:
    with Output(tmp_path / "a") as output:
        file = output.create()
        file.write(bytes(1_000_000))
        file.write(bytes(200_000))
        file.zeros(gap)
        file.patch(at, b"1234")
        file.write(b"end")
        output.finish()
        output.publish()
    expected = bytearray(1_200_000 + gap) + b"end"
    expected[at : at + 4] = b"1234"
    assert (tmp_path / "a").read_bytes() == expected


@pytest.mark.parametrize("at", [-1, 7, 100])
def test_only_what_was_written_is_patched(at: int, tmp_path: Path) -> None:
    with Output(tmp_path / "a") as output:
        file = output.create()
        file.write(bytes(10))
        with pytest.raises(ValueError, match="not among the 10 written"):
            file.patch(at, b"1234")
