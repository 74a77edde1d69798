"""The checksum beside the writing: right whatever is patched meanwhile, and no thread outlives its file."""

from __future__ import annotations

import random
import threading
import zlib
from pathlib import Path

import pytest

from ckptio.training.checksums import ChecksummedOutput, file_crc32


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "ckptio-checksum"]


@pytest.mark.parametrize("size", [0, 1, 100, (4 << 20) - 1, 4 << 20, 9 << 20])
def test_the_checksum_is_that_of_the_file(tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    found: list[tuple[Path, int, int]] = []
    with ChecksummedOutput(tmp_path / "x.bin", found=lambda *each: found.append(each)) as output:
        file = output.create()
        for start in range(0, size, 1_500_000):
            file.write(data[start : start + 1_500_000])
        output.finish()
        output.publish()
    assert found == [(tmp_path / "x.bin", size, zlib.crc32(data))]
    assert file_crc32(tmp_path / "x.bin") == zlib.crc32(data)
    assert threads() == []


@pytest.mark.parametrize("seed", range(12))
def test_what_is_patched_before_or_after_it_was_read_counts_as_it_is_in_the_end(
    tmp_path: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    wanted = bytearray()
    found: list[int] = []
    with ChecksummedOutput(tmp_path / "x", found=lambda path, size, crc: found.append(crc)) as output:
        file = output.create()
        for _ in range(12):
            piece = chosen.randbytes(chosen.choice([10, 100_000, 2_000_000]))
            file.write(piece)
            wanted += piece
            for _ in range(3):
                patch = chosen.randbytes(chosen.choice([1, 4, 5_000]))[: len(wanted)]
                at = chosen.choice([0, len(wanted) - len(patch), chosen.randint(0, len(wanted) - len(patch))])
                file.patch(at, patch)
                wanted[at : at + len(patch)] = patch
        output.finish()
        output.publish()
    assert (tmp_path / "x").read_bytes() == wanted
    assert found == [zlib.crc32(wanted)]


def test_files_of_a_directory_are_told_by_the_paths_that_they_will_have(tmp_path: Path) -> None:
    found: dict[str, int] = {}

    def note(path: Path, size: int, crc: int) -> None:
        found[path.relative_to(tmp_path).as_posix()] = crc

    with ChecksummedOutput(tmp_path / "set", found=note) as output:
        for name in ("a", "deep/b"):
            file = output.create(name)
            file.write(name.encode())
            file.finish()
        output.finish()
        output.publish()
    assert found == {"set/a": zlib.crc32(b"a"), "set/deep/b": zlib.crc32(b"deep/b")}


def test_what_is_not_finished_leaves_neither_thread_nor_file(tmp_path: Path) -> None:
    with ChecksummedOutput(tmp_path / "x", found=lambda *_: None) as output:
        output.create().write(bytes(8 << 20))
        assert len(threads()) == 1
    assert threads() == []
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "broken")

    monkeypatch.setattr("os.fsync", fail)
    with ChecksummedOutput(tmp_path / "x", found=lambda *_: None) as output:
        output.create().write(bytes(8 << 20))
        with pytest.raises(OSError, match="broken"):
            output.finish()
    assert threads() == []
    assert list(tmp_path.iterdir()) == []


def test_a_refused_patch_does_not_hold_up_the_rest(tmp_path: Path) -> None:
    found: list[int] = []
    data = bytes(8 << 20)
    with ChecksummedOutput(tmp_path / "x", found=lambda path, size, crc: found.append(crc)) as output:
        file = output.create()
        file.write(data)
        with pytest.raises(ValueError, match="are not among"):
            file.patch(len(data), b"x")
        file.write(data)
        output.finish()
    assert found == [zlib.crc32(data + data)]
