"""Zip archives read: what zipfile and torch wrote, and every way in which an archive can lie."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ckptio
from ckptio import CorruptCheckpointError, SourceFile, UnsupportedError
from ckptio.archive import ZipArchive, first_entry
from ckptio.archive.layout import CENTRAL, END, END64_LOCATOR, LOCAL
from golden import golden

NOISE = random.Random(5).randbytes(200_000)
PLAIN = {"a": b"alpha", "d/é": NOISE, "empty": b"", "z": b"\0" * 100_000}


@contextlib.contextmanager
def opened(path: Path, **options: Any) -> Iterator[ZipArchive]:
    with contextlib.closing(SourceFile(path)) as file:
        yield ZipArchive(file, **options)


class Stream(io.RawIOBase):
    """A stream that cannot go back, so that zipfile has to write data descriptors."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(data)


def zipped(contents: dict[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b"") -> bytearray:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.comment = comment
        for name, data in contents.items():
            archive.writestr(name, data)
    return bytearray(buffer.getvalue())


def streamed(contents: dict[str, bytes], method: int) -> bytearray:
    stream = Stream()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return stream.data


def wide(contents: dict[str, bytes], method: int) -> bytearray:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in contents.items():
            with archive.open(name, "w", force_zip64=True) as entry:
                entry.write(data)
    return bytearray(buffer.getvalue())


def central_at(data: bytes | bytearray, index: int = 0) -> int:
    """Return the offset of a record of the central directory."""
    at = END.unpack_from(data, len(data) - END.size)[6]
    for _ in range(index):
        at += CENTRAL.size + sum(struct.unpack_from("<3H", data, at + 28))
    return int(at)


# Archives that are right


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("make", [zipped, streamed, wide])
def test_archives_of_zipfile_read_the_same(
    make: Callable[..., bytearray], method: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(make(PLAIN, method))
    with opened(path) as archive:
        assert list(archive.entries) == list(PLAIN)
        for name, content in PLAIN.items():
            entry = archive.entries[name]
            assert (entry.size, entry.crc) == (len(content), zlib.crc32(content))
            assert archive.read(entry, len(content)) == content
            if method == zipfile.ZIP_STORED:
                span = archive.span(entry)
                assert path.read_bytes()[span.offset : span.offset + span.length] == content
            else:
                with pytest.raises(ValueError, match="compressed"):
                    archive.span(entry)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_chunks_are_slices(method: int, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zipped(PLAIN, method))
    with opened(path) as archive:
        entry = archive.entries["d/é"]
        for start, stop in [(0, None), (0, 0), (1, None), (70_000, 150_001), (70_000, None), (200_000, None)]:
            for size in (7_001, 1 << 20):
                chunks = [bytes(chunk) for chunk in archive.chunks(entry, size, start, stop)]
                assert b"".join(chunks) == NOISE[start:stop]
                assert all(len(chunk) == size for chunk in chunks[:-1])
                assert all(0 < len(chunk) <= size for chunk in chunks)


def test_what_torch_wrote_reads_as_zipfile_reads_it() -> None:
    path = golden("torch/tied_zip.pt")
    with opened(path) as archive, zipfile.ZipFile(path) as judge:
        assert list(archive.entries) == judge.namelist()
        for name, entry in archive.entries.items():
            assert archive.read(entry, 1 << 20) == judge.read(name)


def test_comments_and_the_archive_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    # The comment itself looks like an end record.
    path.write_bytes(zipped(PLAIN, comment=b"PK\x05\x06 and more, to be longer than an end record"))
    with opened(path) as archive:
        assert list(archive.entries) == list(PLAIN)
    path.write_bytes(zipped({}))
    with opened(path) as archive:
        assert not archive.entries


def test_more_entries_than_16_bits_count(tmp_path: Path) -> None:
    names = [str(number) for number in range(65_536)]
    path = tmp_path / "a.zip"
    path.write_bytes(zipped(dict.fromkeys(names, b"")))
    with opened(path) as archive:
        assert list(archive.entries) == names


def test_the_bounds_of_a_header(tmp_path: Path) -> None:
    data = zipped({str(number): b"" for number in range(100)})
    with ckptio.raised_limits(tensors=10):
        refused(tmp_path / "a.zip", data, "100 entries are more than the limit of 10")
    with ckptio.raised_limits(header_bytes=1000):
        refused(tmp_path / "a.zip", data, "above 1000")


def test_the_first_entry_is_seen_in_the_head() -> None:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        found = first_entry(bytes(zipped({"ü": NOISE}, method)[:4096]))
        assert found is not None
        name, data = found
        assert name == "ü"
        assert len(data) > 1000
        assert NOISE.startswith(data)
    assert first_entry(b"PK\x03\x04") is None
    assert first_entry(b"") is None
    assert first_entry(bytes(zipped({}))) is None


# Archives that lie


def refused(
    path: Path, data: bytes | bytearray, match: str, kind: type[ckptio.CkptError] = CorruptCheckpointError
) -> None:
    path.write_bytes(data)
    with pytest.raises(kind, match=match) as caught, opened(path):
        pass
    if isinstance(caught.value, CorruptCheckpointError):
        assert caught.value.offset is not None
        assert caught.value.offset <= len(data)


def test_two_entries_of_one_name(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("a", b"1")
        archive.writestr("a", b"2")
    refused(tmp_path / "a.zip", buffer.getvalue(), "two entries are named 'a'")


@pytest.mark.parametrize("bit", [0, 6, 13])
@pytest.mark.parametrize("where", ["central", "local"])
def test_encrypted_entries(bit: int, where: str, tmp_path: Path) -> None:
    data = zipped({"secret": b"12345"})
    at = central_at(data) + 8 if where == "central" else 6
    struct.pack_into("<H", data, at, 1 << bit)
    if where == "central":
        refused(tmp_path / "a.zip", data, "'secret' is encrypted", UnsupportedError)
    else:
        refused(tmp_path / "a.zip", data, "described differently")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions(method: int, tmp_path: Path) -> None:
    refused(tmp_path / "a.zip", zipped({"a": NOISE[:999]}, method), f"method {method}", UnsupportedError)


@pytest.mark.parametrize("field", [4, 6, 8, 10])
def test_parts_of_split_archives(field: int, tmp_path: Path) -> None:
    data = zipped(PLAIN)
    struct.pack_into("<H", data, len(data) - END.size + field, 3)
    refused(tmp_path / "a.zip", data, "one part of a split zip archive", UnsupportedError)


def test_an_entry_on_another_disk(tmp_path: Path) -> None:
    data = zipped({"a": b"1"})
    struct.pack_into("<H", data, central_at(data) + 34, 2)
    refused(tmp_path / "a.zip", data, "one part of a split zip archive", UnsupportedError)


def test_an_archive_behind_something_else(tmp_path: Path) -> None:
    refused(tmp_path / "a.zip", b"x" + zipped(PLAIN), "something was put before it")
    refused(tmp_path / "a.zip", zipped(PLAIN) + zipped({"b": b"2"}), "something was put before it")
    path = tmp_path / "b.zip"
    path.write_bytes(b"#!/bin/sh\n")
    with zipfile.ZipFile(path, "a") as archive:  # its offsets count what was there before
        archive.writestr("a", b"1")
    refused(path, path.read_bytes(), "10 bytes belong to no entry")


def test_bytes_that_belong_to_no_entry(tmp_path: Path) -> None:
    data = zipped({"a": b"1", "b": b"2"})
    directory = central_at(data)
    hidden = data[:directory] + b"hidden" + data[directory:]
    struct.pack_into("<I", hidden, len(hidden) - END.size + 16, directory + 6)
    refused(tmp_path / "a.zip", hidden, "6 bytes belong to no entry")
    refused(tmp_path / "a.zip", data + b"x", "no end of a central directory")


def test_entries_that_overlap(tmp_path: Path) -> None:
    inner = zipped({"b": b"bb"})
    header = bytes(inner[: central_at(inner)])
    data = zipped({"a": header, "b": b"bb"})
    assert data.count(header) == 2
    struct.pack_into("<I", data, central_at(data, 1) + 42, data.index(header))
    refused(tmp_path / "a.zip", data, "two entries overlap")
    # Two names for one entry.
    data = zipped({"a": b"1", "b": b"1"})
    struct.pack_into("<I", data, central_at(data, 1) + 42, 0)
    refused(tmp_path / "a.zip", data, "described differently")


@pytest.mark.parametrize("offset", [1, 4, 30, 10_000, 0xFFFFFFFE, 0xFFFFFFFF])
def test_headers_outside(offset: int, tmp_path: Path) -> None:
    data = zipped({"a": b"1", "b": b"2"})
    struct.pack_into("<I", data, central_at(data) + 42, offset)
    refused(tmp_path / "a.zip", data, "no header here|cannot be at|differently|overlap|zip64 field")


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ((20, 24), 10_000, "differently"),
        ((16,), 7, "differently"),
        ((24,), 4, "differently"),
        ((20,), 4, "differently"),
        ((10,), 8, "differently"),
        ((28,), 9, "not the name of an entry"),
        ((30,), 60_000, "ends inside|goes beyond|damaged"),
        ((20,), 0xFFFFFFFF, "zip64 field"),
        ((0,), 0, "entry 0 of the central directory is damaged"),
    ],
)
def test_central_records_that_lie(field: tuple[int, ...], value: int, match: str, tmp_path: Path) -> None:
    data = zipped({"a": b"12345", "b": b"2"})
    for each in field:
        layout = "<H" if each in (10, 28, 30) else "<I"
        struct.pack_into(layout, data, central_at(data) + each, value)
    refused(tmp_path / "a.zip", data, match)


def test_data_that_reaches_beyond(tmp_path: Path) -> None:
    data = zipped({"a": b"12345"})
    for at in (central_at(data) + 20, central_at(data) + 24, 18, 22):
        struct.pack_into("<I", data, at, 10_000)
    refused(tmp_path / "a.zip", data, "reaches into the directory")


@pytest.mark.parametrize(
    ("count", "match"),
    [(0, "follow the last of 0"), (1, "follow the last of 1"), (3, "cannot be in"), (0xFFFF, "cannot be in")],
)
def test_counts_that_lie(count: int, match: str, tmp_path: Path) -> None:
    data = zipped({"a": b"1", "b": b"2"})
    struct.pack_into("<2H", data, len(data) - END.size + 8, count, count)
    refused(tmp_path / "a.zip", data, match)


def test_zip64_records_that_lie(tmp_path: Path) -> None:
    path = golden("torch/tied_zip.pt")
    whole = path.read_bytes()
    locator = len(whole) - END.size - END64_LOCATOR.size
    end64 = struct.unpack_from("<Q", whole, locator + 8)[0]
    for at, value in [
        (locator + 8, 2**63),
        (locator + 8, end64 - 1),
        (end64, 0),
        (end64 + 4, 2**64 - 1),
        (end64 + 24, 2**40),
        (end64 + 40, 2**40),
        (end64 + 48, 2**64 - 1),
    ]:
        data = bytearray(whole)
        struct.pack_into("<Q", data, at, value)
        refused(tmp_path / "a.pt", data, "zip64 end record|end record has")


@pytest.mark.parametrize("name", ["/abs", "\\abs", "../x", "a/../b", "a\\..\\b", ".."])
def test_names_that_lead_out(name: str, tmp_path: Path) -> None:
    data = zipped({name: b"1"})
    refused(tmp_path / "a.zip", data, "leads out of the archive")
    with opened(tmp_path / "a.zip", names_are_paths=False) as archive:
        assert list(archive.entries) == [name]


def test_names_that_are_none(tmp_path: Path) -> None:
    data = zipped({"a_b": b"1"})
    refused(tmp_path / "a.zip", data.replace(b"a_b", b"a\0b"), "not the name of an entry")
    data = zipped({"é": b"1"}).replace("é".encode(), b"\xc3\xc3")
    refused(tmp_path / "a.zip", data, "is not UTF-8")


def test_things_that_are_no_archive(tmp_path: Path) -> None:
    for data in (b"", b"PK\x05\x06", NOISE, bytes(100_000), b"PK\x05\x06" * 30_000):
        refused(tmp_path / "a.zip", data, "no end of a central directory")
    whole = zipped(PLAIN)
    for cut in (1, 21, 22, 23, 100, len(whole) // 2):
        refused(tmp_path / "a.zip", whole[:-cut], "no end of a central directory")


# Compressed data that lies


def set_sizes(data: bytearray, size: int | None = None, crc: int | None = None) -> bytearray:
    """Let both headers of the first entry say another size or CRC."""
    for at in (14, central_at(data) + 16):
        if crc is not None:
            struct.pack_into("<I", data, at, crc)
        if size is not None:
            struct.pack_into("<I", data, at + 8, size)
    return data


def read_first(path: Path, data: bytes | bytearray) -> bytes:
    path.write_bytes(data)
    with opened(path) as archive:
        entry = next(iter(archive.entries.values()))
        return b"".join(archive.chunks(entry, 10_000))


def deflated(stream: bytes, content: bytes) -> bytearray:
    """Return an archive whose one entry has a stream of our own making, and claims ``content``."""
    data = zipped({"z": stream})
    for at in (8, central_at(data) + 10):
        struct.pack_into("<H", data, at, zipfile.ZIP_DEFLATED)
    return set_sizes(data, len(content), zlib.crc32(content))


@pytest.mark.parametrize(("size", "match"), [(99_999, "more bytes"), (100_001, "fewer bytes")])
def test_streams_of_another_length(size: int, match: str, tmp_path: Path) -> None:
    data = set_sizes(zipped({"z": bytes(100_000)}, zipfile.ZIP_DEFLATED), size)
    with pytest.raises(CorruptCheckpointError, match=match):
        read_first(tmp_path / "a.zip", data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wrong_checksum(method: int, tmp_path: Path) -> None:
    data = set_sizes(zipped({"z": NOISE}, method), crc=1)
    with pytest.raises(CorruptCheckpointError, match="CRC-32 of 'z'") as caught:
        read_first(tmp_path / "a.zip", data)
    assert caught.value.offset == LOCAL.size + 1
    with opened(tmp_path / "a.zip") as archive:
        entry = archive.entries["z"]
        assert b"".join(archive.chunks(entry, 1 << 20, 0, 1000)) == NOISE[:1000], "not read to its end"


def test_streams_that_do_not_end_where_they_should(tmp_path: Path) -> None:
    engine = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    open_end = engine.compress(NOISE[:999]) + engine.flush(zlib.Z_SYNC_FLUSH)
    whole = open_end + engine.flush()
    assert read_first(tmp_path / "a.zip", deflated(whole, NOISE[:999])) == NOISE[:999]
    for stream in (open_end, whole + b"behind", whole + bytes(100_000)):
        with pytest.raises(CorruptCheckpointError, match="has more bytes than it claims, or no end"):
            read_first(tmp_path / "a.zip", deflated(stream, NOISE[:999]))


def test_damaged_streams(tmp_path: Path) -> None:
    whole = zipped({"z": NOISE[:3000] * 3}, zipfile.ZIP_DEFLATED)
    generator = random.Random(1)
    for _ in range(100):
        data = bytearray(whole)
        data[generator.randrange(LOCAL.size + 1, central_at(whole))] ^= 1 << generator.randrange(8)
        with pytest.raises(CorruptCheckpointError, match="CRC-32|stream"):
            read_first(tmp_path / "a.zip", data)


def test_a_bomb_is_refused_before_it_is_lit(tmp_path: Path) -> None:
    data = zipped({"z": bytes(100_000)}, zipfile.ZIP_DEFLATED)
    compressed = struct.unpack_from("<I", data, 18)[0]
    refused(tmp_path / "a.zip", set_sizes(data, compressed * 1032 + 1), "cannot have")


def test_a_bomb_within_the_ratio_takes_no_more_than_a_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    size = 30 << 20
    path.write_bytes(zipped({"z": bytes(size)}, zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 50_000
    with opened(path) as archive:
        tracemalloc.start()
        try:
            count = sum(len(chunk) for chunk in archive.chunks(archive.entries["z"], 256 << 10))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert count == size
        assert peak < 2 << 20
        with pytest.raises(CorruptCheckpointError, match=f"has {size} bytes; no more than 1000"):
            archive.read(archive.entries["z"], 1000)
