"""The ten lines of CONTRIBUTING.md, run as they stand there: to the end, and on from the middle."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

from ckptio.training import CheckpointOptions, list_checkpoints, resume_checkpoint, save_checkpoint

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"<!-- entry -->\n```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def train_step(model: dict[str, Any], optimizer: dict[str, Any], position: int) -> float:
    """One step of a moment and a weight, on the samples from ``position`` on."""
    gradient = model["w"] - np.arange(position, position + 4, dtype="<f4")
    optimizer["m"] += 0.5 * (gradient - optimizer["m"])
    model["w"] -= 0.25 * optimizer["m"]
    return float(np.square(gradient).mean())


def run(*arguments: str) -> tuple[Any, dict[str, Any]]:
    """Run the block with these arguments; return the last trainer state and the model."""
    found = _BLOCK.search((ROOT / "CONTRIBUTING.md").read_text())
    assert found is not None
    assert len(found[1].splitlines()) <= 11
    names: dict[str, Any] = {
        "argparse": argparse,
        "dataclasses": dataclasses,
        "CheckpointOptions": CheckpointOptions,
        "resume_checkpoint": resume_checkpoint,
        "save_checkpoint": save_checkpoint,
        "train_step": train_step,
        "arguments": list(arguments),
        "model": {"w": np.zeros(4, "<f4")},
        "optimizer": {"m": np.zeros(4, "<f4")},
    }
    exec(compile(found[1], "CONTRIBUTING.md", "exec"), names)
    return names["state"], names["model"]


def test_the_ten_lines_resume_to_the_last_bit(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    flags = (
        "--checkpoint_dir",
        str(tmp_path / "run"),
        "--save_steps",
        "3",
        "--checkpoint_format",
        "statedict",
    )
    state, model = run(*flags)
    assert (state.global_step, state.consumed_samples) == (8, 32)
    assert [step.step for step in list_checkpoints(tmp_path / "run")] == [3, 6]
    again, resumed = run("--resume_from", str(tmp_path / "run" / "checkpoint_step_000003"))
    assert again.last_loss == state.last_loss
    assert resumed["w"].tobytes() == model["w"].tobytes()
    cold, _ = run()
    assert cold.last_loss == state.last_loss  # a run without a directory trains all the same
