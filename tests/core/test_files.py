"""Sources: reads in bounds, headers parsed in bounds, chunks, and files that change or are no files."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import socket
import struct
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptio
from ckptio import Cursor, DType, FileCheckpoint, SourceFile, Span, TensorSpec, open_source
from ckptio.files import read_chunks

PATTERN = random.Random(2).randbytes(200_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "source.bin"
    found.write_bytes(PATTERN)
    return found


# SourceFile


def test_reads_by_position(path: Path) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        assert file.size == len(PATTERN)
        assert file.read_at(5, 10) == PATTERN[5:15]
        assert file.read_at(0, len(PATTERN)) == PATTERN
        assert file.read_at(len(PATTERN), 0) == b""
        buffer = bytearray(7)
        file.read_into(memoryview(buffer), 100)
        assert buffer == PATTERN[100:107]
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0


@pytest.mark.parametrize(
    ("offset", "size"), [(199_999, 2), (200_000, 1), (0, 200_001), (2**62, 1), (0, 2**62)]
)
def test_a_read_past_the_end_is_refused_before_memory_is_taken(path: Path, offset: int, size: int) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        with pytest.raises(ckptio.CorruptCheckpointError, match="ends too early") as caught:
            file.read_at(offset, size)
        assert (caught.value.offset, caught.value.path) == (offset, str(path))


def test_read_into_past_the_end(path: Path) -> None:
    with (
        contextlib.closing(SourceFile(path)) as file,
        pytest.raises(ckptio.CorruptCheckpointError, match="ends too early") as caught,
    ):
        file.read_into(memoryview(bytearray(30)), len(PATTERN) - 10)
    assert caught.value.offset == len(PATTERN)


def test_short_system_reads_are_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 3), at))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:3]], at))
    with contextlib.closing(SourceFile(path)) as file:
        assert file.read_at(11, 20) == PATTERN[11:31]


def test_a_closed_file_is_a_value_error(path: Path) -> None:
    file = SourceFile(path)
    file.close()
    file.close()
    for use in (file.fileno, file.check_unchanged, lambda: file.read_at(0, 1)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_an_unclosed_file_warns_and_is_closed(path: Path) -> None:
    file = SourceFile(path)
    fd = file.fileno()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del file
        gc.collect()
    assert [each.category for each in caught] == [ResourceWarning]
    assert str(path) in str(caught[0].message)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_open_source_closes_when_the_with_fails_and_only_then(path: Path) -> None:
    with open_source(path) as kept:
        pass
    assert kept.read_at(0, 1) == PATTERN[:1]
    kept.close()
    with pytest.raises(KeyboardInterrupt), open_source(path) as failed:
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="closed"):
        failed.fileno()


# What is no file


def in_time(call: Callable[[], object]) -> BaseException | None:
    """Return what ``call`` raised; fail when it hangs."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert raised, "it hangs"
    return raised[0]


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    error = in_time(lambda: SourceFile(tmp_path / "pipe"))
    assert isinstance(error, ckptio.UnsupportedError)
    assert str(error) == f"{tmp_path / 'pipe'}: not a regular file"


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_a_device_is_refused(device: str) -> None:
    assert isinstance(in_time(lambda: SourceFile(device)), ckptio.UnsupportedError)


def test_other_things_keep_the_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(IsADirectoryError) as caught:
        SourceFile(tmp_path)
    assert caught.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError):
        SourceFile(tmp_path / "missing")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        SourceFile(tmp_path / "loop")
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind("socket")
        with pytest.raises(OSError, match="No such device"):
            SourceFile(tmp_path / "socket")


def test_nothing_stays_open_after_a_refusal(tmp_path: Path) -> None:
    opened = Path("/proc/self/fd")
    before = len(list(opened.iterdir()))
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises((OSError, ckptio.UnsupportedError)):
            SourceFile(place)
    assert len(list(opened.iterdir())) == before


# Files that change while they are read


def test_an_unchanged_file_passes(path: Path) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        path.read_bytes()
        file.check_unchanged()


def test_a_rewritten_file_is_noticed(path: Path) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        path.write_bytes(PATTERN + b"!")
        with pytest.raises(ckptio.ChangedCheckpointError, match=r"source\.bin"):
            file.check_unchanged()


def test_a_rewrite_of_equal_size_is_noticed_by_its_time(path: Path) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        info = path.stat()
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
        with pytest.raises(ckptio.ChangedCheckpointError):
            file.check_unchanged()


def test_what_was_opened_stays_what_is_read(path: Path) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        other = path.with_name("other")
        other.write_bytes(b"other")
        other.rename(path)
        assert file.read_at(0, 100) == PATTERN[:100]
        file.check_unchanged()


def test_a_file_cut_under_the_reader_is_told_as_changed(path: Path) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        os.truncate(path, 1000)
        with pytest.raises(ckptio.ChangedCheckpointError) as caught:
            file.read_at(990, 50)
        assert caught.value.offset == 1000


# Cursor


def test_pieces_of_any_size_across_the_window(path: Path) -> None:
    chance = random.Random(1)
    with contextlib.closing(SourceFile(path)) as file:
        cursor = Cursor(file)
        while cursor.left:
            at = cursor.offset
            size = min(cursor.left, chance.choice([0, 1, 4, 1000, 65_535, 65_536, 70_000]))
            if chance.random() < 0.3:
                cursor.skip(size, "payload")
            else:
                assert cursor.take(size, "piece") == PATTERN[at : at + size]
            assert cursor.offset == at + size
        assert cursor.take(0, "nothing") == b""


def test_unpack_and_a_start_elsewhere(path: Path) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        cursor = Cursor(file, 100)
        layout = struct.Struct("<IHb")
        assert cursor.unpack(layout, "numbers") == layout.unpack_from(PATTERN, 100)
        assert (cursor.offset, cursor.left) == (107, len(PATTERN) - 107)
        cursor.offset = 3
        assert cursor.take(4, "again") == PATTERN[3:7]


@pytest.mark.parametrize("verb", ["take", "skip"])
@pytest.mark.parametrize("size", [11, 2**32, 2**63, 2**70])
def test_no_more_than_is_left(path: Path, verb: str, size: int) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        cursor = Cursor(file, len(PATTERN) - 10)
        with pytest.raises(
            ckptio.CorruptCheckpointError, match=f"inside a name: {size} bytes .* 10 left"
        ) as caught:
            getattr(cursor, verb)(size, "a name")
        assert caught.value.offset == len(PATTERN) - 10
        assert cursor.take(10, "the rest") == PATTERN[-10:]


def test_the_header_is_bounded_and_skipped_payload_is_not_header(path: Path) -> None:
    with contextlib.closing(SourceFile(path)) as file, ckptio.raised_limits(header_bytes=100):
        cursor = Cursor(file)
        cursor.take(60, "header")
        cursor.skip(150_000, "payload")
        cursor.take(40, "header")
        with pytest.raises(ckptio.CorruptCheckpointError, match="larger than 100 bytes"):
            cursor.take(1, "header")


def test_an_error_can_point_elsewhere(path: Path) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        cursor = Cursor(file, 8)
        assert str(cursor.error("wrong")) == f"{path}: wrong (at byte 8)"
        assert cursor.error("wrong", 0).offset == 0


# FileCheckpoint and read_chunks


@pytest.fixture
def checkpoint(path: Path) -> FileCheckpoint:
    specs = {
        "a": TensorSpec("a", DType.F32, (11, 3)),
        "wide": TensorSpec("wide", DType.C128, (100,)),
        "none": TensorSpec("none", DType.F64, (0, 2)),
        "one": TensorSpec("one", DType.I64, ()),
    }
    return FileCheckpoint(SourceFile(path), specs, {"a": 13, "wide": 1001, "none": len(PATTERN), "one": 7})


BYTES = {"a": PATTERN[13:145], "wide": PATTERN[1001:2601], "none": b"", "one": PATTERN[7:15]}


@pytest.mark.parametrize("max_bytes", [1, 4, 7, 16, 17, 132, 133, 1 << 22])
def test_chunks_are_whole_elements_within_the_size(checkpoint: FileCheckpoint, max_bytes: int) -> None:
    with checkpoint:
        for name, spec in checkpoint.specs.items():
            chunks = list(checkpoint.chunks(name, max_bytes))
            assert b"".join(chunks) == BYTES[name]
            assert all(0 < len(chunk) <= max(max_bytes, spec.dtype.itemsize) for chunk in chunks)
            assert all(len(chunk) % spec.dtype.itemsize == 0 for chunk in chunks)
            assert b"".join(checkpoint.chunks(name, max_bytes)) == BYTES[name]


def test_chunks_of_two_tensors_by_turns(checkpoint: FileCheckpoint) -> None:
    with checkpoint:
        names = ("a", "wide", "wide")
        streams = [checkpoint.chunks(name, 16) for name in names]
        parts: list[list[bytes]] = [[], [], []]
        for _ in range(100):
            for stream, collected in zip(streams, parts, strict=True):
                collected.append(bytes(next(stream, b"")))
        assert [b"".join(collected) for collected in parts] == [BYTES[name] for name in names]


def test_two_threads_read_the_same_checkpoint(checkpoint: FileCheckpoint) -> None:
    wrong: list[str] = []

    def read(name: str) -> None:
        for _ in range(200):
            if (
                b"".join(checkpoint.chunks(name, 24)) != BYTES[name]
                or checkpoint.read(name).tobytes() != BYTES[name]
            ):
                wrong.append(name)

    with checkpoint:
        threads = [threading.Thread(target=read, args=(name,)) for name in ("a", "wide")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_arrays_and_spans(checkpoint: FileCheckpoint) -> None:
    with checkpoint:
        np.testing.assert_array_equal(
            checkpoint.read("a"), np.frombuffer(PATTERN, "<f4", 33, 13).reshape(11, 3), strict=True
        )
        assert checkpoint.read("none").shape == (0, 2)
        assert checkpoint.read("one").shape == ()
        assert checkpoint.spans("a") == (Span(checkpoint.file, 13, 132),)
        checkpoint.check_unchanged()


def test_a_closed_checkpoint_is_a_value_error(checkpoint: FileCheckpoint) -> None:
    stream = checkpoint.chunks("a", 16)
    next(stream)
    checkpoint.close()
    for use in (
        lambda: next(stream),
        lambda: list(checkpoint.chunks("wide")),
        lambda: checkpoint.read("a"),
        lambda: checkpoint.read("a", mmap=True),
        checkpoint.check_unchanged,
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize("max_bytes", [4, 8, 100])
def test_an_element_may_lie_across_pieces(path: Path, max_bytes: int) -> None:
    with contextlib.closing(SourceFile(path)) as file:
        pieces = [(10, 3), (50, 0), (0, 6), (100, 1), (7, 10)]
        whole = b"".join(PATTERN[start : start + length] for start, length in pieces)
        chunks = [bytes(c) for c in read_chunks([Span(file, *piece) for piece in pieces], max_bytes, 4)]
        assert b"".join(chunks) == whole
        assert all(len(chunk) % 4 == 0 and len(chunk) <= max_bytes for chunk in chunks)
