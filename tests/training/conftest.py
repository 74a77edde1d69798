from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ckptio.training import CheckpointOptions, resume_checkpoint, save_checkpoint

SAMPLES = 64


class Loop:
    """A training run of plain numpy: a linear model, Adam by hand, 64 samples in a fixed order."""

    def __init__(self, options: CheckpointOptions, **resuming: Any) -> None:
        start = np.random.default_rng(7)
        self.model: dict[str, npt.NDArray[np.float64]] = {"w": start.normal(size=(3, 2)), "b": np.zeros(2)}
        self.optimizer: dict[str, Any] = {
            "exp_avg": {name: np.zeros_like(each) for name, each in self.model.items()},
            "exp_avg_sq": {name: np.zeros_like(each) for name, each in self.model.items()},
            "step": 0,
        }
        self.inputs = start.normal(size=(SAMPLES, 3))
        self.targets = start.normal(size=(SAMPLES, 2))
        self.options = options
        self.notes: list[str] = []
        self.seen: list[int] = []
        self.state = resume_checkpoint(
            options, self.model, self.optimizer, notes=self.notes.append, **resuming
        )

    def step(self, batch_size: int = 2) -> float:
        """Train on the next samples and return the loss before the step."""
        at = (self.state.consumed_samples + np.arange(batch_size)) % SAMPLES
        self.seen += at.tolist()
        error = self.inputs[at] @ self.model["w"] + self.model["b"] - self.targets[at]
        gradients = {"w": self.inputs[at].T @ error / batch_size, "b": error.mean(axis=0)}
        self.optimizer["step"] += 1
        for name, gradient in gradients.items():
            first, second = self.optimizer["exp_avg"][name], self.optimizer["exp_avg_sq"][name]
            first[...] = 0.9 * first + 0.1 * gradient
            second[...] = 0.99 * second + 0.01 * gradient**2
            fresh = 1 - 0.9 ** self.optimizer["step"], 1 - 0.99 ** self.optimizer["step"]
            self.model[name] -= 0.05 * (first / fresh[0]) / (np.sqrt(second / fresh[1]) + 1e-8)
        self.state = dataclasses.replace(
            self.state,
            global_step=self.state.global_step + 1,
            consumed_samples=self.state.consumed_samples + batch_size,
        )
        return float((error**2).mean())

    def save(self, **more: Any) -> Path:
        return save_checkpoint(
            self.options, self.state, self.model, self.optimizer, notes=self.notes.append, **more
        )

    def save_as(self, step: int, **more: Any) -> Path:
        """Save as if this were ``step``."""
        self.state = dataclasses.replace(self.state, global_step=step)
        return self.save(**more)


@pytest.fixture
def loop(tmp_path: Path) -> Callable[..., Loop]:
    """Begin a run that saves into ``tmp_path/run``; keywords are options, ``resuming`` those of resuming."""

    def begin(resuming: dict[str, Any] | None = None, **options: Any) -> Loop:
        given = {"checkpoint_dir": tmp_path / "run", "save_steps": 1, **options}
        return Loop(CheckpointOptions(**given), **(resuming or {}))

    return begin


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    return tmp_path / "run"
