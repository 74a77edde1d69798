"""steps: every checkpoint of a run, whole or why not, in the order of their numbers."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptio.training import CheckpointOptions, TrainerState, save_checkpoint
from golden import GOLDEN


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Save these steps of a run, each with a loss of its number."""

    def save(*numbers: int, checkpoint_format: str = "statedict") -> Path:
        directory = tmp_path / "run"
        options = CheckpointOptions(directory, save_steps=1, checkpoint_format=checkpoint_format)
        for number in numbers:
            state = TrainerState(global_step=number, last_loss=float(number))
            save_checkpoint(
                options, state, {"w": np.ones(2, np.float32)}, {"m": np.ones(3)}, notes=lambda text: None
            )
        return directory

    return save


def directory_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def test_a_row_per_step_in_numeric_order(ckpt: Callable[..., Any], run: Callable[..., Path]) -> None:
    directory = run(1000000, 900, 10000, 9000)
    rows = json.loads(ckpt("steps", directory, "--json").out)
    assert [row["step"] for row in rows] == [900, 9000, 10000, 1000000]
    for row in rows:
        path = directory / f"checkpoint_step_{row['step']:06d}"
        assert row.pop("age_seconds") < 600
        assert row == {
            "step": row["step"],
            "path": str(path),
            "complete": True,
            "problem": None,
            "manifest": True,
            "bytes": directory_bytes(path),
            "formats": {"model": "statedict", "optimizer": "statedict"},
            "loss": float(row["step"]),
        }
    ended = ckpt("steps", directory)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].split() == ["step", "bytes", "age", "format", "loss", "state", "directory"]
    size = f"{directory_bytes(directory / 'checkpoint_step_000900'):,}"
    assert lines[1].split()[:2] == ["900", size]
    assert lines[1].split()[-4:] == ["statedict", "900.000000", "complete", "checkpoint_step_000900"]


def test_what_is_not_whole_says_why(ckpt: Callable[..., Any], run: Callable[..., Path]) -> None:
    directory = run(1, 2, 3, 4)
    step = {number: directory / f"checkpoint_step_{number:06d}" for number in (2, 3, 4)}
    (step[2] / "trainer_state.json").unlink()
    os.truncate(step[3] / "model.ckpt", 10)
    shutil.rmtree(step[4])
    step[4].mkdir()
    rows = json.loads(ckpt("steps", directory, "--json").out)
    assert [row["complete"] for row in rows] == [True, False, False, False]
    assert "trainer_state.json" in rows[1]["problem"]
    assert "model.ckpt has 10 bytes" in rows[2]["problem"]
    out = ckpt("steps", directory).out
    for row in rows[1:]:
        assert row["problem"] in out


@pytest.mark.parametrize("name", ["gpt2_sgd", "gpt2_adam", "llama3_adam", "gpt2_lora"])
def test_infinitrain_s_directories_have_no_manifest(ckpt: Callable[..., Any], name: str) -> None:
    directory = GOLDEN / "infinitrain" / "runs" / name / "ckpt"
    rows = json.loads(ckpt("steps", directory, "--json").out)
    parts = {path.stem for path in directory.glob("*_000002/*.ckpt")}
    assert [row["step"] for row in rows] == sorted(int(path.name[-6:]) for path in directory.iterdir())
    for row in rows:
        assert (row["complete"], row["manifest"], row["loss"]) == (True, False, None)
        assert row["formats"] == dict.fromkeys(parts, "statedict")
    assert "complete, no manifest" in ckpt("steps", directory).out


def test_two_formats_are_both_named(ckpt: Callable[..., Any], run: Callable[..., Path]) -> None:
    directory = run(7, checkpoint_format="msgpack")
    assert ckpt("steps", directory).out.splitlines()[1].split()[-4] == "msgpack"
    manifest = directory / "checkpoint_step_000007" / "manifest.json"
    document = json.loads(manifest.read_text())
    document["parts"]["optimizer"]["format"] = "npz"
    manifest.write_text(json.dumps(document))
    assert "msgpack, npz" in ckpt("steps", directory).out


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172800, "2 days")],
)
def test_the_age(
    ckpt: Callable[..., Any],
    run: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    age: str,
) -> None:
    directory = run(1)
    now = time.time()
    for path in directory.rglob("*"):
        os.utime(path, (now, now))
    monkeypatch.setattr("ckptio.cli.steps.time.time", lambda: now + seconds + 0.5)
    assert f"  {age}  statedict" in ckpt("steps", directory).out


def test_other_names_are_a_note_and_no_step(
    ckpt: Callable[..., Any], run: Callable[..., Path], tmp_path: Path
) -> None:
    directory = run(5)
    (directory / "checkpoint_step_abc").mkdir()
    ended = ckpt("steps", directory)
    assert len(ended.out.splitlines()) == 2
    assert ended.err.startswith("note: ")
    assert "checkpoint_step_abc" in ended.err
    (tmp_path / "empty").mkdir()
    ended = ckpt("steps", tmp_path / "empty")
    assert (ended.status, ended.out) == (0, f"no checkpoint in {tmp_path / 'empty'}\n")
    assert ckpt("steps", tmp_path / "empty", "--json").out == "[]\n"


def test_no_directory_is_an_error(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "absent", tmp_path / "file"):
        ended = ckpt("steps", path)
        assert (ended.status, ended.out) == (1, "")
        assert str(path) in ended.err
