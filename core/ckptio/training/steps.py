"""Step directories: their names and order, which one is whole, and why another is not."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ckptio.errors import CkptError, CorruptCheckpointError, IncompleteCheckpointError
from ckptio.reading import open as open_checkpoint
from ckptio.trainer_file import STATE_FILE, read_document
from ckptio.training.leftovers import leftovers
from ckptio.training.manifest import MANIFEST, Manifest, damage, read_manifest
from ckptio.training.notes import Notes, speaker
from ckptio.training.state import TrainerState

__all__ = [
    "FINAL",
    "Step",
    "find_step",
    "is_run",
    "latest_checkpoint",
    "list_checkpoints",
    "open_step",
    "open_steps",
    "step_directories",
    "step_name",
    "step_of_name",
]

FINAL = "checkpoint_final"
"""The unnumbered directory of InfiniTrain's first stage; its trainer state has the step."""
_NAME = re.compile(r"checkpoint_step_([0-9]{1,18})")
_PARTS = re.compile(r"(model|optimizer)\.[A-Za-z0-9_]+")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Step:
    """One step directory as it was found.

    ``problem`` says why it cannot be resumed (None: it is complete). Without a ``manifest`` (as InfiniTrain
    writes them) its sizes and checksums are not known. ``files`` maps each part (``model``, ``optimizer``,
    extra states) to its file (or directory of shards) and the name of its format, None where that is not
    recorded. ``nbytes`` are all its files together, ``modified`` seconds since 1970. ``state`` is None where
    it could not be read.
    """

    path: Path
    step: int
    problem: str | None
    manifest: Manifest | None
    files: dict[str, tuple[Path, str | None]]
    nbytes: int
    modified: float
    state: TrainerState | None


def step_name(step: int) -> str:
    """Return the name of the directory of ``step``: ``checkpoint_step_000040``."""
    return f"checkpoint_step_{step:06d}"


def step_of_name(name: str) -> int | None:
    """Return the number of the step whose directory is called ``name``, or None for another name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def step_directories(directory: Path, *, notes: Notes | None = None) -> list[tuple[int, Path]]:
    """Return the step directories of a run, whole or not, in numeric order; links are not followed.

    What only looks like one is named in a note. An empty list where there is no such directory.
    """
    found, ignored = [], []
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    for entry in entries:
        step = step_of_name(entry.name)
        if entry.name == FINAL and entry.is_dir(follow_symlinks=False):
            step = _step_of_state(Path(entry.path))
        if step is not None and entry.is_dir(follow_symlinks=False):
            found.append((step, Path(entry.path)))
        elif entry.name.startswith("checkpoint") or entry.name == "latest":
            ignored.append(entry.name)
    if ignored and notes is not None:
        more = ", …" if len(ignored) > _SHOWN else ""
        notes(f"{directory}: ignored, being no step directories: {', '.join(ignored[:_SHOWN])}{more}")
    return sorted(found)


def open_step(path: Path, *, checksums: bool = False) -> Step:
    """Look at one step directory, whole or not; only headers are read, unless ``checksums`` are asked for.

    Raises FileNotFoundError when it is not there.
    """
    path = Path(path)
    number = step_of_name(path.name)
    state, manifest = None, None
    files: dict[str, tuple[Path, str | None]] = {}
    try:
        manifest = read_manifest(path)
        files = _parts(path, manifest)
        if (path / STATE_FILE).exists():
            state = TrainerState.from_json(read_document(path / STATE_FILE), path / STATE_FILE)
        problem = _problem(path, manifest, files, state, checksums)
    except (CkptError, OSError) as error:
        problem = str(error)
    begun = path.stat().st_mtime
    sizes = list(_file_stats(path))
    modified = max((each.st_mtime for each in sizes), default=begun)
    step = number if number is not None else state.global_step if state is not None else 0
    nbytes = sum(each.st_size for each in sizes)
    return Step(path, step, problem, manifest, files, nbytes, modified, state)


def open_steps(paths: Iterable[Path], *, checksums: bool = False) -> Iterator[Step]:
    """Look at each step directory that is still there: a training that goes on may prune one meanwhile."""
    for path in paths:
        try:
            step = open_step(path, checksums=checksums)
        except FileNotFoundError:
            continue
        yield step


def list_checkpoints(directory: Path, *, notes: Notes | None = None) -> list[Step]:
    """Return the step directories of a run, incomplete ones too, in numeric order (the newest last)."""
    return list(open_steps(path for _, path in step_directories(directory, notes=speaker(notes))))


def latest_checkpoint(directory: Path, *, checksums: bool = False, notes: Notes | None = None) -> Step | None:
    """Return the newest complete step of a run, or None; ``notes`` hears what was passed over and why."""
    say = speaker(notes)
    found = [path for _, path in step_directories(directory, notes=say)]
    for step in open_steps(reversed(found), checksums=checksums):
        if step.problem is None:
            return step
        say(f"{step.path}: passed over: {step.problem}")
    return None


def find_step(path: str | os.PathLike[str], *, checksums: bool = False, notes: Notes | None = None) -> Step:
    """Return the complete step that ``path`` means: a step directory, or the newest of a run directory.

    Raises FileNotFoundError for no directory at all, and `IncompleteCheckpointError` with the reason, or
    with those of all that were passed over.
    """
    path, say = Path(path), speaker(notes)
    if not path.is_dir():
        path.stat()
        raise NotADirectoryError(20, "Not a step directory or a run directory", str(path))
    if not is_run(path):
        step = open_step(path, checksums=checksums)
        if step.problem is not None:
            raise IncompleteCheckpointError(f"cannot be resumed: {step.problem}", path=path)
        return step
    heard: list[str] = []
    found = latest_checkpoint(path, checksums=checksums, notes=heard.append)
    if found is None:
        lines = ["no complete checkpoint", *heard, *(f"left over: {each.name}" for each in leftovers(path))]
        raise IncompleteCheckpointError("\n  ".join(lines), path=path)
    for line in heard:
        say(line)
    return found


def is_run(path: Path) -> bool:
    """Return whether a directory is one of step directories, and not one itself."""
    if step_of_name(path.name) is not None or path.name == FINAL:
        return False
    return not any(name in (STATE_FILE, MANIFEST) or _PARTS.fullmatch(name) for name in os.listdir(path))


def _file_stats(path: Path) -> Iterator[os.stat_result]:
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                info = os.stat(os.path.join(directory, name))
                if stat.S_ISREG(info.st_mode):
                    yield info


def _step_of_state(path: Path) -> int:
    try:
        return TrainerState.from_json(read_document(path / STATE_FILE)).global_step
    except (CkptError, OSError):
        return 0  # it sorts first, and is passed over with the reason


def _parts(path: Path, manifest: Manifest | None) -> dict[str, tuple[Path, str | None]]:
    if manifest is not None:
        return {name: (path / file, kind) for name, (file, kind) in manifest.parts.items()}
    files: dict[str, tuple[Path, str | None]] = {}
    for name in filter(_PARTS.fullmatch, sorted(os.listdir(path))):
        part = name.partition(".")[0]
        if part in files:
            what = f"{files[part][0].name} and {name}: which one is the {part}?"
            raise CorruptCheckpointError(what, path=path)
        files[part] = path / name, None
    return files


def _problem(
    path: Path,
    manifest: Manifest | None,
    files: dict[str, tuple[Path, str | None]],
    state: TrainerState | None,
    checksums: bool,
) -> str | None:
    """Return why a step directory is not whole, or None; its files are opened where there is no manifest."""
    if "model" not in files:
        if any(path.glob("rank_*")):
            return "it has a directory per rank, which cannot be resumed yet"
        return "its model is missing" if os.listdir(path) else "it is empty"
    if state is None:
        return f"{STATE_FILE} is missing"
    number = step_of_name(path.name)
    if number is not None and state.global_step != number:
        return f"its trainer state is that of step {state.global_step}"
    if manifest is not None and manifest.step != state.global_step:
        return f"its manifest is that of step {manifest.step}"
    if manifest is not None:
        return damage(path, manifest, checksums=checksums)
    for file, _ in files.values():
        # The structural check of a format is to open the file: every header, to the last byte.
        open_checkpoint(file).close()
    return None
