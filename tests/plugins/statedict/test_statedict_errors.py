"""Damaged files made by hand, each refused with the offset of the damage."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import pytest

import ckptio
from ckptio_statedict.format import StatedictFormat
from independent import ckpt_file, record

FORMAT = StatedictFormat()
# 12 bytes of file header; then 4 of name length, the name at 16, the dtype at 17, the number of
# dimensions at 18, the dimensions at 22, the byte count at 30, the data at 38.
GOOD = record(b"a", 11, (2,), data=b"\0" * 8)
END = 12 + len(GOOD)

DAMAGED = {
    "empty": (b"", 0, "ends inside the magic"),
    "magic": (ckpt_file(GOOD, magic=b"CKPU"), 0, "not an InfiniTrain StateDict"),
    "header cut": (ckpt_file(GOOD)[:11], 4, "ends inside the file header"),
    "version": (ckpt_file(GOOD, version=2), 4, "version 2 is unknown"),
    "count too large": (ckpt_file(GOOD, count=3), 8, "3 tensors cannot be in the 34 bytes"),
    "count one too large": (ckpt_file(GOOD, count=2), END, "ends inside the header of tensor 1"),
    "count absurd": (ckpt_file(GOOD, count=2**32 - 1), 8, "4294967295 tensors cannot be"),
    "count too small": (ckpt_file(GOOD, GOOD, count=1), END, "34 bytes follow the last of 1 tensors"),
    "trailing byte": (ckpt_file(GOOD) + b"\0", END, "1 bytes follow the last of 1 tensors"),
    "trailing byte of none": (ckpt_file() + b"\0", 12, "1 bytes follow the last of 0 tensors"),
    "name of 4 GiB": (ckpt_file(struct.pack("<I", 2**32 - 1) + bytes(13)), 16, "header of tensor 0"),
    "name not UTF-8": (ckpt_file(record(b"ok\xff", dims=(2,), data=bytes(8))), 18, "not UTF-8"),
    "name of half a character": (ckpt_file(record(b"\xe2\x82", dims=(0,))), 16, "not UTF-8"),
    "dtype 13": (ckpt_file(record(b"a", 13, data=bytes(8))), 17, "'a'.*dtype 13 is unknown"),
    "dtype -1": (ckpt_file(record(b"a", -1, data=bytes(8))), 17, "dtype -1 is unknown"),
    "65 dimensions": (ckpt_file(record(b"a", 1, (1,) * 65, data=b"\0")), 18, "65 dimensions are more"),
    "dimensions past the end": (ckpt_file(b"\1\0\0\0a\1\7\0\0\0" + bytes(63)), 22, "64 bytes .* 63 left"),
    "dimension -1": (ckpt_file(record(b"a", 11, (-1,))), 22, "negative"),
    "dimensions -1 and -2": (ckpt_file(record(b"a", 11, (-1, -2), data=bytes(8))), 22, "negative"),
    "2**66 elements": (ckpt_file(record(b"a", 1, (2**33, 2**33), nbytes=4)), 22, "larger than any array"),
    # Modulo 2**64 this shape has 0 bytes.
    "bytes that overflow to 0": (ckpt_file(record(b"a", 12, (2**61,))), 22, "larger than any array"),
    "empty, yet no array": (ckpt_file(record(b"a", 1, (2**40, 2**40, 0))), 22, "larger than any array"),
    "bytes too few": (ckpt_file(record(b"a", 11, (2,), data=bytes(7))), 30, "7 bytes of data, but f32"),
    "bytes too many": (ckpt_file(record(b"a", 9, (2,), data=bytes(8))), 30, "8 bytes .* has 4"),
    "bytes of a 0-d tensor": (ckpt_file(record(b"a", 8, data=bytes(4))), 22, "4 bytes .* has 8"),
    "data cut": (ckpt_file(GOOD)[:-1], 38, "ends inside the data of tensor 0: 8 bytes expected, 7 left"),
    "data of 1 TiB": (ckpt_file(record(b"a", 1, (2**40,), nbytes=2**40)), 38, "ends inside the data"),
    "second record cut": (ckpt_file(GOOD, GOOD[:18]), END + 10, "ends inside the header of tensor 1"),
    "two of one name": (ckpt_file(GOOD, GOOD), END, "tensor 1 .'a'. has the name of an earlier"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "damaged.ckpt"


@pytest.mark.parametrize(("content", "offset", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damage_is_told_with_its_offset(path: Path, content: bytes, offset: int, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ckptio.CorruptCheckpointError, match=message) as caught:
        FORMAT.open(path, {})
    assert caught.value.offset == offset
    assert caught.value.path == str(path)


def test_the_undamaged_file_is_read(path: Path) -> None:
    path.write_bytes(ckpt_file(GOOD))
    with FORMAT.open(path, {}) as checkpoint:
        assert checkpoint.read("a").tolist() == [0.0, 0.0]


def test_a_file_cut_anywhere_is_refused(path: Path) -> None:
    whole = ckpt_file(GOOD, record(b"empty", 9, (0, 4)), record(b"step", 8, data=bytes(8)))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ckptio.CorruptCheckpointError):
            FORMAT.open(path, {})


def test_a_flipped_bit_is_refused_or_leaves_tensors_that_fill_the_file(path: Path) -> None:
    whole = ckpt_file(GOOD, record(b"empty", 9, (0, 4)), record(b"step", 8, data=bytes(8)))
    refused = 0
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            with FORMAT.open(path, {}) as checkpoint:
                specs = checkpoint.specs.values()
                headers = sum(17 + len(spec.name.encode()) + 8 * len(spec.shape) for spec in specs)
                assert 12 + headers + sum(spec.nbytes for spec in specs) == len(whole)
                for name in checkpoint.names():
                    checkpoint.read(name)
        except ckptio.CkptError:
            refused += 1
    assert refused > 8 * 12


def test_the_limits_can_be_raised(path: Path) -> None:
    content = ckpt_file(*(record(str(i).encode(), 1, (1,), data=b"\0") for i in range(4)))
    path.write_bytes(content)
    with (
        ckptio.raised_limits(tensors=3),
        pytest.raises(ckptio.CorruptCheckpointError, match="limit of 3") as caught,
    ):
        FORMAT.open(path, {})
    assert caught.value.offset == 8
    with ckptio.raised_limits(tensors=4), FORMAT.open(path, {}) as checkpoint:
        assert len(checkpoint) == 4
    with (
        ckptio.raised_limits(header_bytes=50),
        pytest.raises(ckptio.CorruptCheckpointError, match="50 bytes"),
    ):
        FORMAT.open(path, {})
    path.write_bytes(ckpt_file(record(b"deep", 1, (1,) * 64, data=b"\7")))
    with FORMAT.open(path, {}) as checkpoint:
        assert checkpoint.read("deep").shape == (1,) * 64


def test_a_long_name_does_not_fill_the_message(path: Path) -> None:
    path.write_bytes(ckpt_file(record(b"n" * 100_000, 99)))
    with pytest.raises(ckptio.CorruptCheckpointError) as caught:
        FORMAT.open(path, {})
    assert len(str(caught.value)) < 1000
    assert caught.value.offset == 16 + 100_000


def test_many_small_tensors_stay_in_bounds(path: Path) -> None:
    count = 20_000
    path.write_bytes(ckpt_file(*(record(b"%x" % i, 0, data=b"\1") for i in range(count))))
    header = path.stat().st_size - count
    tracemalloc.start()
    try:
        with FORMAT.open(path, {}) as checkpoint:
            _, peak = tracemalloc.get_traced_memory()
            assert len(checkpoint) == count
    finally:
        tracemalloc.stop()
    assert peak < 20 * header
    begin = time.process_time()
    FORMAT.open(path, {}).close()
    assert time.process_time() - begin < 2


def test_a_refused_file_is_closed(path: Path) -> None:
    opened = Path("/proc/self/fd")
    before = len(list(opened.iterdir()))
    path.write_bytes(ckpt_file(GOOD, version=9))
    for _ in range(3):
        with pytest.raises(ckptio.CorruptCheckpointError):
            FORMAT.open(path, {})
    assert len(list(opened.iterdir())) == before
