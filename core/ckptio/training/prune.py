"""Which step directories of a run stay, and the removal of the others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from ckptio.errors import OptionError
from ckptio.publishing import fsync_directory
from ckptio.training.leftovers import hidden_name
from ckptio.training.notes import Notes, speaker
from ckptio.training.steps import Step, open_steps, step_directories, step_of_name

__all__ = ["prune_checkpoints"]


def prune_checkpoints(
    directory: str | os.PathLike[str],
    keep: int,
    protect: Collection[int | str | os.PathLike[str]] = (),
    *,
    dry_run: bool = False,
    notes: Notes | None = None,
) -> list[Path]:
    """Remove complete steps until ``keep`` are left; return those removed (``dry_run``: to be removed).

    ``protect`` are steps (numbers or directories) that stay in any case and count among the ``keep``; the
    newest ones fill the rest. ``keep`` 0 keeps all. Incomplete steps and everything else are not touched.
    Raises `OptionError` for a ``keep`` below 0, and OSError.
    """
    directory, say = Path(directory), speaker(notes)
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
        raise OptionError(f"keep {keep!r}: a whole number from 0 up is expected")
    if keep == 0:
        return []
    # checkpoint_final has no number in its name, so it stays and does not count.
    found = [path for _, path in step_directories(directory) if step_of_name(path.name) is not None]
    steps = list(open_steps(found))
    for step in steps:
        if step.problem is not None:
            say(f"{step.path}: left alone by pruning: {step.problem}")
    doomed = _doomed([step for step in steps if step.problem is None], keep, protect)
    if doomed and not dry_run:
        for path in doomed:
            _remove(path)
        fsync_directory(directory)
    return doomed


def _doomed(steps: list[Step], keep: int, protect: Collection[int | str | os.PathLike[str]]) -> list[Path]:
    """Return what goes, oldest first, of the complete ``steps`` in numeric order."""
    numbers = {each for each in protect if isinstance(each, int)}
    paths = {os.path.realpath(each) for each in protect if not isinstance(each, int)}
    others = [
        step.path for step in steps if step.step not in numbers and os.path.realpath(step.path) not in paths
    ]
    room = max(0, keep - (len(steps) - len(others)))
    return others[: max(0, len(others) - room)]


def _remove(path: Path) -> None:
    """Remove a step directory: first its name, in one step, so that no half of it is ever taken for one."""
    hidden = hidden_name(path)
    try:
        os.rename(path, hidden)
    except FileNotFoundError:
        return  # another process has removed it meanwhile
    shutil.rmtree(hidden)
