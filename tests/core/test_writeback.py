"""Written data goes to the disk while more is written, and what the disk says is not lost."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from ckptio import writeback
from ckptio.output import Output


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "_EVERY", 1000)


def write(target: Path, blocks: int, synced: threading.Event) -> None:
    """Write blocks; after each, wait until the thread has synced once."""
    with Output(target, on_bytes=lambda count: None if synced.wait(10) else pytest.fail("no sync")) as output:
        file = output.create()
        for _ in range(blocks):
            file.write(bytes(2 << 20))
        output.finish()
        output.publish()


def test_long_files_are_synced_on_the_way_by_a_thread_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs, synced = [], threading.Event()
    real = os.fdatasync

    def watch(fd: int) -> None:
        syncs.append(threading.current_thread().name)
        real(fd)
        synced.set()

    monkeypatch.setattr(os, "fdatasync", watch)
    write(tmp_path / "x", 4, synced)
    assert syncs
    assert set(syncs) == {"ckptio-writeback"}
    assert "ckptio-writeback" not in [thread.name for thread in threading.enumerate()]
    assert (tmp_path / "x").stat().st_size == 4 * (2 << 20)


def test_an_error_met_on_the_way_is_raised_although_fsync_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()

    def fail(fd: int) -> None:
        synced.set()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write(tmp_path / "x", 4, synced)
    assert list(tmp_path.iterdir()) == []
    assert "ckptio-writeback" not in [thread.name for thread in threading.enumerate()]
