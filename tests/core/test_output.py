"""Targets: whole under their name or not at all, durable, and filled by whichever way of copying there is."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ckptio
from ckptio import Output, SourceFile, Span
from ckptio.output import check_target, temporary_sibling, write_file

PATTERN = random.Random(3).randbytes(300_000)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def publish(out: Output) -> None:
    out.finish()
    out.publish()


@pytest.fixture
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SourceFile]:
    path = tmp_path_factory.mktemp("source") / "source.bin"
    path.write_bytes(PATTERN)
    with contextlib.closing(SourceFile(path)) as file:
        yield file


# The order of the calls that make an output durable


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Watch the system: every fsync, link, rename and replace with the last part of the path at that time."""
    seen: list[tuple[str, str]] = []

    def watch(verb: str, path_of: Callable[..., str]) -> None:
        real = getattr(os, verb)

        def call(*args: Any, **options: Any) -> Any:
            path = path_of(*args)
            seen.append((verb, "staging" if path.endswith(".tmp") else os.path.basename(path)))
            return real(*args, **options)

        monkeypatch.setattr(os, verb, call)

    watch("fsync", lambda fd: os.readlink(f"/proc/self/fd/{fd}"))
    for verb in ("link", "rename", "replace"):
        watch(verb, lambda _, target: str(target))
    return seen


def test_a_new_file_is_forced_to_disk_then_named_then_its_directory_forced(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    target = tmp_path / "folder" / "new.ckpt"
    target.parent.mkdir()
    with Output(target) as out:
        out.create().write(b"new")
        publish(out)
    assert calls == [("fsync", "staging"), ("link", "new.ckpt"), ("fsync", "folder")]
    assert target.read_bytes() == b"new"


def test_a_replaced_file_is_renamed_in_the_same_order(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    target = tmp_path / "folder" / "old.ckpt"
    target.parent.mkdir()
    target.write_bytes(b"old")
    write_file(target, b"new", overwrite=True)
    assert calls == [("fsync", "staging"), ("rename", "old.ckpt"), ("fsync", "folder")]
    assert target.read_bytes() == b"new"


def test_a_directory_is_forced_to_disk_with_all_that_is_in_it(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    target = tmp_path / "folder" / "shards"
    target.parent.mkdir()
    with Output(target) as out:
        out.create("a.bin").write(b"a")
        out.create("deep/b.bin").write(b"b")
        publish(out)
    before, rename, after = calls[:-2], calls[-2], calls[-1]
    assert sorted(before) == [("fsync", name) for name in ("a.bin", "b.bin", "deep", "staging")]
    assert (rename, after) == (("rename", "shards"), ("fsync", "folder"))


def test_a_file_system_without_links_gets_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    write_file(tmp_path / "x", b"1", overwrite=False)
    assert (tmp_path / "x").read_bytes() == b"1"
    with pytest.raises(FileExistsError, match="appeared meanwhile"):
        write_file(tmp_path / "x", b"2", overwrite=False)
    assert (tmp_path / "x").read_bytes() == b"1"
    assert names(tmp_path) == ["x"]


# Nothing is seen before the end, and nothing stays behind


def test_the_name_is_free_until_published(tmp_path: Path) -> None:
    target = tmp_path / "x.ckpt"
    with Output(target) as out:
        assert out.final_name == "x.ckpt"
        out.create().write(b"x" * 5_000_000)
        out.finish()
        assert not target.exists()
        (hidden,) = names(tmp_path)
        assert hidden.startswith(".ckptio-")
        out.publish()
        assert names(tmp_path) == ["x.ckpt"]
    assert target.stat().st_size == 5_000_000


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("relative", [None, "deep/shard.bin"])
@pytest.mark.parametrize("finished", [False, True])
def test_whatever_is_raised_the_old_target_stays_and_nothing_else(
    tmp_path: Path, raised: type[BaseException], relative: str | None, finished: bool
) -> None:
    target = tmp_path / "x.ckpt"
    target.write_bytes(b"old")
    os.utime(target, ns=(1, 1))

    def interrupted() -> None:
        with Output(target, overwrite=relative is None) as out:
            out.create(relative).write(b"new" * 1_000_000)
            if finished:
                out.finish()
            raise raised

    with pytest.raises(raised):
        interrupted()
    assert names(tmp_path) == ["x.ckpt"]
    assert (target.read_bytes(), target.stat().st_mtime_ns) == (b"old", 1)


def test_an_output_that_is_left_without_publishing_is_gone(tmp_path: Path) -> None:
    with Output(tmp_path / "x") as out:
        out.create().write(b"x")
        out.finish()
    with Output(tmp_path / "x"):
        pass
    assert names(tmp_path) == []


@pytest.mark.parametrize(("verb", "overwrite"), [("fsync", False), ("fsync", True), ("rename", True)])
def test_a_failing_system_call_leaves_the_old_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, overwrite: bool
) -> None:
    if overwrite:
        (tmp_path / "x").write_bytes(b"old")

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, "failing disk")

    monkeypatch.setattr(os, verb, fail)
    with pytest.raises(OSError, match="failing disk"):
        write_file(tmp_path / "x", b"new", overwrite=overwrite)
    assert names(tmp_path) == (["x"] if overwrite else [])
    assert not overwrite or (tmp_path / "x").read_bytes() == b"old"


@pytest.mark.parametrize("relative", [None, "shard"])
def test_of_two_writers_one_publishes_and_the_other_is_told(tmp_path: Path, relative: str | None) -> None:
    target = tmp_path / "x"
    with Output(target) as first, Output(target) as second:
        first.create(relative).write(b"first")
        second.create(relative).write(b"second")
        first.finish()
        second.finish()
        first.publish()
        with pytest.raises(FileExistsError, match="appeared meanwhile") as caught:
            second.publish()
        assert caught.value.filename == str(target)
    assert names(tmp_path) == ["x"]
    assert (target / relative if relative else target).read_bytes() == b"first"


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"real")
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", b"new", overwrite=True)
    assert (tmp_path / "link").read_bytes() == b"new"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"real"


def test_a_target_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "usual").write_bytes(b"")
    write_file(tmp_path / "ours", b"", overwrite=False)
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


# A full disk


FILL = """
import resource, sys
from pathlib import Path
from ckptio.output import Output
from ckptio import SourceFile, Span
how, source, target = sys.argv[1:]
file = SourceFile(source)
if how.startswith("limited"):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with Output(Path(target), overwrite=True) as out:
        made = out.create()
        for _ in range(20):
            if how.endswith("write"):
                made.write(file.read_at(0, file.size))
            else:
                made.copy(Span(file, 0, file.size))
        out.finish()
        out.publish()
except OSError as error:
    assert error.filename == target, error
    print(error.errno)
file.close()
"""


def fill(how: str, source: SourceFile, target: Path) -> int:
    """Write 6 MB in a process of its own; return the errno that it met."""
    command = [sys.executable, "-c", FILL, how, str(source.path), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.parametrize("how", ["limited write", "limited copy"])
def test_a_limit_on_the_size_of_files(tmp_path: Path, source: SourceFile, how: str) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"old")
    assert fill(how, source, target) == errno.EFBIG
    assert names(tmp_path) == ["x"]
    assert target.read_bytes() == b"old"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("no permission to mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("how", ["write", "copy"])
def test_a_full_disk(small_disk: Path, source: SourceFile, how: str) -> None:
    target = small_disk / "x"
    target.write_bytes(b"old")
    assert fill(how, source, target) == errno.ENOSPC
    assert names(small_disk) == ["x"]
    assert target.read_bytes() == b"old"


# Copying


WAYS = ["copy_file_range", "sendfile", "buffer"]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, int]]:
    """Force a way of copying: those before it fail with ``errno``; the calls of each are counted."""

    def force(way: str, code: int = errno.EXDEV, most: int = 1 << 40) -> dict[str, int]:
        count = dict.fromkeys(WAYS, 0)
        real_range, real_sendfile = os.copy_file_range, os.sendfile

        def refused(at: str) -> bool:
            count[at] += 1
            return WAYS.index(at) < WAYS.index(way)

        def copy_file_range(source: int, target: int, size: int, offset: int) -> int:
            if refused("copy_file_range"):
                raise OSError(code, os.strerror(code))
            return real_range(source, target, min(size, most), offset)

        def sendfile(target: int, source: int, offset: int, size: int) -> int:
            if refused("sendfile"):
                raise OSError(code, os.strerror(code))
            return real_sendfile(target, source, offset, min(size, most))

        monkeypatch.setattr(os, "copy_file_range", copy_file_range)
        monkeypatch.setattr(os, "sendfile", sendfile)
        return count

    return force


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("code", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_every_way_of_copying_gives_the_same_bytes(
    tmp_path: Path, source: SourceFile, ways: Callable[..., dict[str, int]], way: str, code: int
) -> None:
    count = ways(way, code)
    progress: list[int] = []
    with Output(tmp_path / "x", on_bytes=progress.append) as out:
        file = out.create()
        file.write(b"head")
        file.copy(Span(source, 7, 200_000))
        file.write(b"middle")
        file.copy(Span(source, 1, 99_999))
        file.copy(Span(source, 5, 10))
        assert file.tell() == 4 + 200_000 + 6 + 99_999 + 10
        publish(out)
    expected = b"head" + PATTERN[7:200_007] + b"middle" + PATTERN[1:100_000] + PATTERN[5:15]
    assert (tmp_path / "x").read_bytes() == expected
    assert sum(progress) == len(expected)
    # What failed once is not tried again; what works is used for both large pieces.
    wanted = dict.fromkeys(WAYS[: WAYS.index(way)], 1) | {way: 2}
    assert {each: n for each, n in count.items() if n} == {k: n for k, n in wanted.items() if k != "buffer"}


@pytest.mark.parametrize("way", ["copy_file_range", "sendfile"])
def test_short_copies_are_continued(
    tmp_path: Path, source: SourceFile, ways: Callable[..., dict[str, int]], way: str
) -> None:
    count = ways(way, most=30_001)
    with Output(tmp_path / "x") as out:
        out.create().copy(Span(source, 3, 299_997))
        publish(out)
    assert (tmp_path / "x").read_bytes() == PATTERN[3:]
    assert count[way] == 10


def test_a_kernel_that_copies_nothing_is_not_believed(
    tmp_path: Path, source: SourceFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", lambda *args: 0)
    monkeypatch.setattr(os, "sendfile", lambda *args: 0)
    with Output(tmp_path / "x") as out:
        out.create().copy(Span(source, 0, 300_000))
        publish(out)
    assert (tmp_path / "x").read_bytes() == PATTERN


@pytest.mark.parametrize("way", WAYS)
def test_a_source_that_is_cut_under_the_copy_is_an_error(
    tmp_path: Path, source: SourceFile, ways: Callable[..., dict[str, int]], way: str
) -> None:
    ways(way)
    os.truncate(source.path, 150_000)
    with pytest.raises(ckptio.ChangedCheckpointError, match="was cut"), Output(tmp_path / "x") as out:
        out.create().copy(Span(source, 0, 300_000))
    assert names(tmp_path) == []


def test_another_error_of_the_kernel_passes(
    tmp_path: Path, source: SourceFile, ways: Callable[..., dict[str, int]]
) -> None:
    ways("buffer", errno.EIO)
    with pytest.raises(OSError, match="Input/output"), Output(tmp_path / "x") as out:
        out.create().copy(Span(source, 0, 300_000))
    assert names(tmp_path) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_long_copy_moves_the_progress_and_can_be_interrupted(
    tmp_path: Path, source: SourceFile, ways: Callable[..., dict[str, int]], way: str
) -> None:
    ways(way)
    path = tmp_path / "long"
    with path.open("wb") as sparse:
        sparse.truncate(40 << 20)
    steps: list[int] = []

    def stop_at_the_second(count: int) -> None:
        steps.append(count)
        if len(steps) == 2:
            raise KeyboardInterrupt

    with (
        contextlib.closing(SourceFile(path)) as file,
        pytest.raises(KeyboardInterrupt),
        Output(tmp_path / "x", on_bytes=stop_at_the_second) as out,
    ):
        out.create().copy(Span(file, 0, 40 << 20))
    assert all(0 < step <= 32 << 20 for step in steps)
    assert names(tmp_path) == ["long"]


@pytest.mark.parametrize("size", [0, 1, 999, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_writes_of_any_size_arrive_in_order(tmp_path: Path, size: int) -> None:
    piece = (PATTERN * 10)[:size]
    with Output(tmp_path / "x") as out:
        file = out.create()
        for data in (b"<", piece, bytearray(b"="), memoryview(piece), b">"):
            file.write(data)
        file.zeros(3)
        assert file.tell() == 2 * size + 6
        publish(out)
    assert (tmp_path / "x").read_bytes() == b"<" + piece + b"=" + piece + b">\0\0\0"


@pytest.mark.parametrize("count", [0, 1, 5_000_000])
def test_zeros(tmp_path: Path, count: int) -> None:
    with Output(tmp_path / "x") as out:
        out.create().zeros(count)
        publish(out)
    assert (tmp_path / "x").read_bytes() == bytes(count)


def test_short_system_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:700]))
    write_file(tmp_path / "x", PATTERN[:5000], overwrite=False)
    assert (tmp_path / "x").read_bytes() == PATTERN[:5000]


# Directories


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "shards"
    with Output(target) as out:
        out.create("one.bin").write(b"1")
        out.create("deep/er/two.bin").write(b"2")
        out.create("nothing.bin")
        out.finish()
        assert not target.exists()
        out.publish()
    found = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*.bin")}
    assert found == {"one.bin": b"1", "deep/er/two.bin": b"2", "nothing.bin": b""}
    assert names(tmp_path) == ["shards"]


@pytest.mark.parametrize("relative", ["../x", "a/../../x", "/abs", "..", "", ".", "nul\0", "a/../b", "//x"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, relative: str) -> None:
    with Output(tmp_path / "inner" / "shards") as out:
        (tmp_path / "inner").mkdir()
        with pytest.raises(ValueError, match="outside of the target"):
            out.create(relative)
    assert names(tmp_path) == ["inner"]
    assert names(tmp_path / "inner") == []


@pytest.mark.parametrize(("first", "second"), [(None, None), ("a", "a"), (None, "a"), ("a", None)])
def test_one_file_or_a_directory_of_different_names(
    tmp_path: Path, first: str | None, second: str | None
) -> None:
    with Output(tmp_path / "x") as out:
        out.create(first)
        with pytest.raises(ValueError, match="one file, or a directory"):
            out.create(second)
    assert names(tmp_path) == []


def test_a_directory_never_replaces_what_is_there(tmp_path: Path) -> None:
    for kept in ("full", "empty"):
        (tmp_path / kept).mkdir()
    (tmp_path / "full" / "mine").write_bytes(b"mine")
    (tmp_path / "file").write_bytes(b"file")
    for kept in ("full", "empty", "file"):
        with Output(tmp_path / kept) as out:
            out.create("shard").write(b"shard")
            out.finish()
            with pytest.raises(FileExistsError):
                out.publish()
    assert names(tmp_path) == ["empty", "file", "full"]
    assert names(tmp_path / "full") == ["mine"]
    assert names(tmp_path / "empty") == []


# Refusals before any work


def test_a_good_target_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").write_bytes(b"")
    check_target(tmp_path / "new", overwrite=False)
    check_target(tmp_path / "old", overwrite=True)
    monkeypatch.chdir(tmp_path)
    check_target(Path("bare"), overwrite=False)
    assert names(tmp_path) == ["old"]


def test_targets_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    refusals: list[tuple[Path, type[Exception]]] = [
        (tmp_path / "file", FileExistsError),
        (tmp_path / "dangling", FileExistsError),
        (tmp_path / "folder", IsADirectoryError),
        (tmp_path / "missing" / "x", FileNotFoundError),
        (tmp_path / "file" / "x", NotADirectoryError),
        (tmp_path / "pipe", ckptio.OptionError),
        (Path("/"), ckptio.OptionError),
        (tmp_path / ("n" * 300), OSError),
    ]
    for target, error in refusals:
        with pytest.raises(error):
            check_target(target, overwrite=False)
    for target, error in refusals[2:]:
        with pytest.raises(error):
            check_target(target, overwrite=True)
    with pytest.raises(FileExistsError, match="--overwrite"):
        check_target(tmp_path / "file", overwrite=False)


def test_a_directory_without_write_permission() -> None:
    # Not tmp_path: nobody else may enter that.
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "folder"
        folder.mkdir()
        os.chmod(made, 0o755)
        os.chmod(folder, 0o555)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o555
        child = os.fork()
        if child == 0:
            status = 3
            try:
                if os.geteuid() == 0:
                    os.setresuid(65534, 65534, 65534)
                check_target(folder / "x", overwrite=False)
            except PermissionError as error:
                status = 0 if error.filename == str(folder) else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        check_target(Path(made) / "x", overwrite=False)


def test_hidden_names_are_fresh_siblings(tmp_path: Path) -> None:
    found = {temporary_sibling(tmp_path / "x") for _ in range(100)}
    assert len(found) == 100
    assert all(path.parent == tmp_path and path.name.startswith(".ckptio-") for path in found)


def test_files_that_a_writer_finishes_are_not_all_open_at_once(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Output(tmp_path / "x") as output:
        for number in range(20):
            file = output.create(f"{number}")
            file.write(b"x")
            file.finish()
        assert len(os.listdir("/proc/self/fd")) == before
        output.finish()
        output.publish()
    assert {path.read_bytes() for path in (tmp_path / "x").iterdir()} == {b"x"}
