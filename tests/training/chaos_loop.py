"""A small deterministic training loop over numpy arrays, made to be killed anywhere.

It resumes from the newest complete checkpoint, if there is one, and ends by writing its weights. Momentum,
order of the data and the learning rate all matter to them, so a resume that forgets one ends elsewhere.
``--naive`` saves as people do who know no better: over the one file there is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ckptio.training import CheckpointOptions, TrainerState, resume_checkpoint, save_checkpoint

STEPS = 4
Arrays = dict[str, npt.NDArray[Any]]


def new_run() -> tuple[Arrays, Arrays]:
    """Return the weights and the momentum of a run that begins."""
    start = np.random.default_rng(7).standard_normal((8, 3)).astype(np.float32)
    model = {"linear.weight": start, "linear.bias": np.zeros(3, np.float32)}
    return model, {f"momentum.{name}": np.zeros_like(each) for name, each in model.items()}


def train_one(step: int, model: Arrays, momentum: Arrays) -> None:
    """Do one step, in place; the batch and the learning rate are functions of the step."""
    random = np.random.default_rng(step)
    inputs = random.standard_normal((16, 8)).astype(np.float32)
    errors = inputs @ model["linear.weight"] + model["linear.bias"] - np.sin(inputs[:, :3])
    gradients = {"linear.weight": inputs.T @ errors / 16, "linear.bias": errors.mean(0)}
    for name, gradient in gradients.items():
        velocity = momentum[f"momentum.{name}"]
        velocity[...] = 0.9 * velocity + gradient
        model[name] -= np.float32(0.1 / step) * velocity


def save_naively(path: Path, step: int, model: Arrays, momentum: Arrays) -> None:
    arrays: dict[str, Any] = {"step": np.asarray(step), **model, **momentum}
    with open(path, "wb") as file:
        np.savez(file, **arrays)


def resume_naively(path: Path, model: Arrays, momentum: Arrays) -> int:
    if not path.exists():
        return 0
    with np.load(path) as saved:
        for arrays in (model, momentum):
            for name, each in arrays.items():
                each[...] = saved[name]
        return int(saved["step"])


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser()
    CheckpointOptions.add_arguments(parser)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--naive", action="store_true")
    args = parser.parse_args(argv)
    args.result.parent.mkdir(exist_ok=True)
    options = CheckpointOptions.from_args(args)
    model, momentum = new_run()
    naive = args.result.with_name("naive_0.npz")
    if args.naive:
        state = TrainerState(global_step=resume_naively(naive, model, momentum))
    else:
        state = resume_checkpoint(options, model, momentum)
    sys.stdout.write(f"resumed from step {state.global_step}\n")
    for step in range(state.global_step + 1, STEPS + 1):
        train_one(step, model, momentum)
        if options.should_save(step):
            if args.naive:
                save_naively(naive, step, model, momentum)
            else:
                state = TrainerState(global_step=step, consumed_samples=16 * step)
                save_checkpoint(options, state, model, momentum)
    # Last of all, and a save of its own: it is done again by a run that resumes after the last step.
    with open(args.result, "wb") as file:
        file.write(b"".join(each.tobytes() for each in model.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
