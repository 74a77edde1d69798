"""Full disks and bad places: C4 and C8 in every format; C5 stands in ``tests/core/test_output.py``."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptio


def test_c4_a_full_disk_leaves_what_was_there(tmp_path: Path, target: str) -> None:
    ckptio.save({"w": np.ones(1 << 20, "<f4")}, tmp_path / "in.ckpt")
    (tmp_path / "x").write_bytes(b"the previous one")
    command = [sys.executable, "-m", "ckptio", "convert", "in.ckpt", "x", "--checkpoint_format", target, "-f"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "error: x: File too large\n")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.ckpt", "x"]
    assert (tmp_path / "x").read_bytes() == b"the previous one"


def under_a_file(folder: Path) -> Path:
    (folder / "file").write_bytes(b"")
    return folder / "file" / "x"


def without_permission(folder: Path) -> Path:
    (folder / "locked").mkdir(mode=0o555)
    return folder / "locked" / "x"


def in_the_way(folder: Path) -> Path:
    (folder / "x").write_bytes(b"the previous one")
    return folder / "x"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "x")
    return folder / "x"


@pytest.mark.parametrize(
    "place", [lambda folder: folder / "missing" / "x", under_a_file, without_permission, in_the_way, a_pipe]
)
def test_c8_a_place_that_cannot_be_is_told_before_any_work(
    tmp_path: Path, target: str, place: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    real_access = os.access

    def access(asked: str | Path, mode: int) -> bool:
        # The tests may run as root, who may write anywhere.
        return Path(asked).name != "locked" and real_access(asked, mode)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(ckptio.MemoryCheckpoint, "chunks", None)  # nothing is to be read
    with pytest.raises((OSError, ckptio.OptionError)) as caught:
        ckptio.save({"w": np.ones(3, "<f4")}, path, checkpoint_format=target)
    assert str(path.parent) in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
