"""``ckpt steps``: the checkpoints of a training run, and which of them are whole."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptio.cli.options import Json
from ckptio.cli.text import escape, print_json, print_note, print_table

if TYPE_CHECKING:
    from ckptio.training import Step

__all__ = ["RunDirectory", "steps"]

RunDirectory = Annotated[
    str, typer.Argument(metavar="DIR", help="The directory of a run's checkpoints.", show_default=False)
]

_UNITS = (("days", 2 * 86400, 86400), ("h", 2 * 3600, 3600), ("min", 2 * 60, 60), ("s", 0, 1))
"""The unit of an age, from how many seconds on it is used, and the seconds in it."""


def steps(directory: RunDirectory, as_json: Json = False) -> None:
    """List the checkpoints of a training run, the newest last.

    Each with whether it is complete, or why it is not; its size, age, format, and the loss of its step.
    Only headers are read: `ckpt verify` reads a checkpoint to the last byte.
    """
    from ckptio.training import list_checkpoints

    os.listdir(directory)  # what is no directory is an error, and no empty list
    found = list_checkpoints(Path(directory), notes=print_note)
    now = time.time()
    rows = [_row(step, now) for step in found]
    if as_json:
        print_json(rows)
    elif not rows:
        print(escape(f"no checkpoint in {directory}"))
    else:
        header = ("step", "bytes", "age", "format", "loss", "state", "directory")
        print_table(header, map(_cells, rows), right=(0, 1, 2, 4))


def _row(step: Step, now: float) -> dict[str, Any]:
    return {
        "step": step.step,
        "path": str(step.path),
        "complete": step.problem is None,
        "problem": step.problem,
        "manifest": step.manifest is not None,
        "bytes": step.nbytes,
        "age_seconds": max(0.0, now - step.modified),
        "formats": {part: name or _format(file) for part, (file, name) in step.files.items()},
        "loss": None if step.state is None else step.state.last_loss,
    }


def _format(file: Path) -> str | None:
    """Return the format of a file that no manifest tells of."""
    from ckptio.detect import choose_reader
    from ckptio.errors import CkptError
    from ckptio.registry import registry

    try:
        return choose_reader(file, None, registry()).format.name
    except (CkptError, OSError):
        return None


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    formats = ", ".join(dict.fromkeys(name for name in row["formats"].values() if name is not None))
    state = row["problem"] or ("complete" if row["manifest"] else "complete, no manifest")
    loss = "-" if row["loss"] is None else f"{row['loss']:.6f}"
    name = Path(row["path"]).name
    return str(row["step"]), f"{row['bytes']:,}", _age(row["age_seconds"]), formats or "-", loss, state, name


def _age(seconds: float) -> str:
    unit, _, size = next(each for each in _UNITS if seconds >= each[1])
    return f"{int(seconds // size)} {unit}"
