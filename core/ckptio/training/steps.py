"""Step directories: their names and order, which one is whole, and why another is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ckptio.training.state import TrainerState

__all__ = ["Notes", "Step", "find_step", "latest_checkpoint", "list_checkpoints", "open_step", "step_name"]

Notes = Callable[[str], None]
"""Told, in one sentence each, what was passed over or decided; without one it is logged."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step directory as it was found.

    ``problem`` says why it cannot be resumed (None: it is complete). ``manifest`` says whether it has
    one: without it (as InfiniTrain writes them) sizes and checksums are not known. ``files`` maps each
    part (``model``, ``optimizer``, extra states) to its file and the name of its format, None where that is
    not recorded. ``nbytes`` are all its files together, ``modified`` seconds since 1970. ``state`` is None
    where it could not be read.
    """

    path: Path
    step: int
    problem: str | None
    manifest: bool
    files: dict[str, tuple[Path, str | None]]
    nbytes: int
    modified: float
    state: TrainerState | None


def step_name(step: int) -> str:
    """Return the name of the directory of ``step``: ``checkpoint_step_000040``."""
    return f"checkpoint_step_{step:06d}"


def open_step(path: Path) -> Step:
    """Look at one step directory, whole or not."""
    raise NotImplementedError


def list_checkpoints(directory: Path, *, notes: Notes | None = None) -> list[Step]:
    """Return the step directories of a run, incomplete ones too, in numeric order (the newest last)."""
    raise NotImplementedError


def latest_checkpoint(directory: Path, *, notes: Notes | None = None) -> Step | None:
    """Return the newest complete step of a run, or None; ``notes`` hears what was passed over and why."""
    raise NotImplementedError


def find_step(path: str | Path, *, notes: Notes | None = None) -> Step:
    """Return the complete step that ``path`` means: a step directory, or the newest of a run directory.

    Raises `IncompleteCheckpointError` with the reason, or with those of all that were passed over.
    """
    raise NotImplementedError
