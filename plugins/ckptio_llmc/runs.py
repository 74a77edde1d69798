"""Run directories of llm.c's training programs.

``model_%08d.bin`` is the model after a step, and the empty ``DONE_%08d`` is written when all files of that
step are there (source: ``write_checkpoint`` in ``train_gpt2.cu``, which resumes from the highest one).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from ckptio import Checkpoint, CorruptCheckpointError, UnsupportedError

__all__ = ["finished_models", "open_newest"]

_MODEL = re.compile(r"model_([0-9]{8})\.bin")


def finished_models(names: Iterable[str]) -> list[str]:
    """Return which of the ``names`` in a directory are models of finished steps, the newest first."""
    listed = set(names)
    steps = [found[1] for found in map(_MODEL.fullmatch, listed) if found and f"DONE_{found[1]}" in listed]
    return [f"model_{step}.bin" for step in sorted(steps, reverse=True)]


def open_newest(folder: Path, open_model: Callable[[Path], Checkpoint]) -> Checkpoint:
    """Open the newest model of a finished step that is whole.

    What is newer and damaged, as a cut file is, is passed over with a warning. Raises the error of the
    newest when none is whole, and `UnsupportedError` when no step is finished.
    """
    passed: list[CorruptCheckpointError] = []
    for name in finished_models(entry.name for entry in folder.iterdir()):
        try:
            model = open_model(folder / name)
        except CorruptCheckpointError as error:
            passed.append(error)
            continue
        for each in passed:
            warnings.warn(f"passed over for {name}: {each}", stacklevel=2)
        return model
    if passed:
        raise passed[0]
    what = "a directory without a model_STEP.bin whose DONE_STEP is there; name a file in it"
    raise UnsupportedError(f"{folder}: {what}")
