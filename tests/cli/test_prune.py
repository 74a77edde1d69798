"""prune: the newest complete ones stay, and nothing else in the directory is touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptio.training import CheckpointOptions, TrainerState, save_checkpoint

OTHERS = ("best", "checkpoint_step_000040.keep", "checkpoint_step_abc", ".hidden")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of the steps 9, 10, 100 and 1000000, and what has nothing to do with them."""
    directory = tmp_path / "run"
    options = CheckpointOptions(directory, save_steps=1)
    for number in (9, 10, 100, 1000000):
        save_checkpoint(options, TrainerState(global_step=number), {"w": np.ones(2)}, notes=lambda text: None)
    for name in OTHERS:
        (directory / name).mkdir()
        (directory / name / "file").touch()
    return directory


def numbers(directory: Path) -> set[int]:
    names = {path.name for path in directory.iterdir()}
    assert names >= set(OTHERS)
    return {int(name.removeprefix("checkpoint_step_")) for name in names - set(OTHERS)}


@pytest.mark.parametrize(
    ("argv", "stay"),
    [
        (("--keep", "2"), {100, 1000000}),
        (("--keep", "1"), {1000000}),
        (("--keep", "4"), {9, 10, 100, 1000000}),
        (("--keep", "0"), {9, 10, 100, 1000000}),
        (("--keep", "2", "--protect", "9"), {9, 1000000}),
        (("--keep", "2", "--protect", "9", "--protect", "10"), {9, 10}),
        (("--keep", "1", "--protect", "9", "--protect", "10"), {9, 10}),
    ],
)
def test_which_stay(ckpt: Callable[..., Any], run: Path, argv: tuple[str, ...], stay: set[int]) -> None:
    before = numbers(run)
    planned = ckpt("prune", run, *argv, "--dry-run")
    assert numbers(run) == before
    ended = ckpt("prune", run, *argv)
    assert (ended.status, ended.err) == (0, planned.err)
    assert numbers(run) == stay
    gone = [f"{run}/checkpoint_step_{number:06d}" for number in sorted(before - stay)]
    assert ended.out.splitlines() == ([f"removed {path}" for path in gone] or ["nothing to remove"])
    assert planned.out.splitlines() == ([f"would remove {path}" for path in gone] or ["nothing to remove"])


def test_json(ckpt: Callable[..., Any], run: Path) -> None:
    removed = [f"{run}/checkpoint_step_{number:06d}" for number in (9, 10, 100)]
    planned = ckpt("prune", run, "--keep", "1", "--dry_run", "--json")
    assert json.loads(planned.out) == {"dry_run": True, "removed": removed}
    ended = ckpt("prune", run, "--keep", "1", "--json")
    assert json.loads(ended.out) == {"dry_run": False, "removed": removed}
    assert numbers(run) == {1000000}


def test_an_incomplete_one_is_left_and_does_not_count(ckpt: Callable[..., Any], run: Path) -> None:
    (run / "checkpoint_step_1000000" / "model.ckpt").unlink()
    ended = ckpt("prune", run, "--keep", "1")
    assert ended.status == 0
    assert numbers(run) == {100, 1000000}
    assert "note: " in ended.err
    assert "checkpoint_step_1000000" in ended.err


@pytest.mark.parametrize("argv", [(), ("--keep", "-1"), ("--keep", "two"), ("--keep", "1", "--protect", "x")])
def test_a_wrong_use_removes_nothing(ckpt: Callable[..., Any], run: Path, argv: tuple[str, ...]) -> None:
    before = numbers(run)
    ended = ckpt("prune", run, *argv)
    assert (ended.status, ended.out) == (2, "")
    assert numbers(run) == before


def test_no_directory_is_an_error(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    ended = ckpt("prune", tmp_path / "absent", "--keep", "1")
    assert (ended.status, ended.out) == (1, "")
