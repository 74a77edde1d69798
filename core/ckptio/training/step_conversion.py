"""A whole step directory in another format: all its parts, its trainer state, a manifest of its own."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ckptio.conversion import convert
from ckptio.detect import choose_writer
from ckptio.errors import OptionError, UnsupportedError
from ckptio.format import Format
from ckptio.output import check_target, fsync_directory, write_file
from ckptio.publishing import publish_new
from ckptio.registry import registry
from ckptio.report import ConversionReport
from ckptio.training.checksums import file_crc32
from ckptio.training.leftovers import hidden_name, locked_directory
from ckptio.training.manifest import MANIFEST, Manifest
from ckptio.training.notes import Notes
from ckptio.training.state import STATE_FILE, read_document
from ckptio.training.steps import Step, find_step, is_run, step_of_name
from ckptio.writing import Progress

__all__ = ["StepReport", "convert_step"]

_MODEL = "model"
_BESIDE_MODELS = "statedict"
"""The format of what stands beside the model where the chosen one holds models only."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What became of a step directory: the account of each part's conversion."""

    source: str
    target: str
    step: int
    parts: Mapping[str, ConversionReport]

    def summary(self) -> str:
        """Return the accounts of all parts, one after the other."""
        lines = [f"step {self.step}: {self.source} -> {self.target}"]
        return "\n".join([*lines, *(report.summary() for report in self.parts.values())])

    def to_dict(self) -> dict[str, Any]:
        """Return the whole account as JSON values."""
        parts = {name: report.to_dict() for name, report in self.parts.items()}
        return {"source": self.source, "target": self.target, "step": self.step, "parts": parts}


def convert_step(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    checkpoint_format: str | None = None,
    layout: str | None = None,
    dtype: str | None = None,
    optimizer_dtype: str | None = None,
    options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
    progress: Progress | None = None,
    notes: Notes | None = None,
) -> StepReport:
    """Convert a step directory to another format; ``target``, a new directory, appears whole or not at all.

    ``checkpoint_format`` is needed: a directory has no suffix to tell it by. ``layout``, ``dtype``,
    ``options`` and ``config`` are as for `ckptio.convert` and concern the model; the optimizer is cast only
    by ``optimizer_dtype``, and further states never are. A format that holds models only has what is
    beside the model in statedict. The trainer state stays what it was, but for the name of the format.

    Raises as `ckptio.convert` does, and `IncompleteCheckpointError` for a source that cannot be resumed.
    """
    source, target = Path(source), Path(target)
    step = _complete_step(source, target, notes)
    chosen = choose_writer(target, checkpoint_format, registry()).format
    beside = chosen if chosen.capabilities.holds == "any" else registry().require(_BESIDE_MODELS)
    check_target(target, overwrite=False)
    if optimizer_dtype is not None and "optimizer" not in step.files:
        raise OptionError(f"{source} has no optimizer that could be cast")
    known = dict(step.state.config) if step.state is not None and chosen.capabilities.layout else {}
    for_model = {"layout": layout, "dtype": dtype, "options": options, "config": {**known, **(config or {})}}
    progresses = _split(progress, [_size(file) for file, _ in step.files.values()])
    staging = hidden_name(target)
    reports, parts = {}, {}
    with locked_directory(staging):
        for (name, (file, kind)), advance in zip(step.files.items(), progresses, strict=True):
            format_ = chosen if name == _MODEL else beside
            parts[name] = _inside(file, step.path, format_), format_.name
            more = (
                for_model if name == _MODEL else {"dtype": optimizer_dtype if name == "optimizer" else None}
            )
            reports[name] = _convert_part(
                name,
                (file, kind),
                (staging / parts[name][0], format_.name),
                target / parts[name][0],
                {**more, "allow": allow, "progress": advance},
            )
        _write_state(step, staging, chosen.name)
        _write_manifest(step, staging, parts)
        publish_new(staging, target, overwrite=False)
        fsync_directory(target.parent)
    return StepReport(str(source), str(target), step.step, reports)


def _complete_step(source: Path, target: Path, notes: Notes | None) -> Step:
    if source.is_dir() and is_run(source):
        raise OptionError(f"{source} is a directory of step directories: name one of them")
    step = find_step(source, notes=notes)
    number = step_of_name(target.name)
    if number is not None and number != step.step:
        raise OptionError(f"{target}: the name is that of step {number}, but {source} is step {step.step}")
    return step


def _inside(file: Path, directory: Path, chosen: Format) -> str:
    """Return the name of a part in another format: the same one, with that format's suffix."""
    relative = PurePosixPath(file.relative_to(directory).as_posix())
    return str(relative.with_suffix(chosen.suffixes[0] if chosen.suffixes else ""))


def _convert_part(
    name: str,
    source: tuple[Path, str | None],
    staged: tuple[Path, str],
    final: Path,
    arguments: Mapping[str, Any],
) -> ConversionReport:
    staged[0].parent.mkdir(parents=True, exist_ok=True)
    try:
        report = convert(
            source[0], staged[0], source_format=source[1], checkpoint_format=staged[1], **arguments
        )
    except UnsupportedError as error:
        error.add_note(f"that is the part {name!r}; all of the step directory was left unconverted")
        raise
    sidecar = None if report.sidecar is None else str(final.with_name(Path(report.sidecar).name))
    return dataclasses.replace(report, target=str(final), sidecar=sidecar)


def _write_state(step: Step, staging: Path, checkpoint_format: str) -> None:
    # The document and not the parsed state: what else is in it stays as it is.
    document = {**read_document(step.path / STATE_FILE), "checkpoint_format": checkpoint_format}
    data = json.dumps(document, indent=2, allow_nan=False).encode("ascii") + b"\n"
    write_file(staging / STATE_FILE, data, overwrite=False)


def _write_manifest(step: Step, staging: Path, parts: Mapping[str, tuple[str, str]]) -> None:
    files = sorted(path for path in staging.rglob("*") if path.is_file())
    found = {path.relative_to(staging).as_posix(): (path.stat().st_size, file_crc32(path)) for path in files}
    manifest = Manifest(step.step, parts, found)
    write_file(staging / MANIFEST, manifest.to_json(), overwrite=False)


def _size(file: Path) -> int:
    files = file.rglob("*") if file.is_dir() else [file]
    return sum(each.stat().st_size for each in files if each.is_file())


def _split(progress: Progress | None, sizes: list[int]) -> list[Progress | None]:
    """Return a progress for each part that moves the one of the whole by the part's share."""
    if progress is None:
        return [None] * len(sizes)
    return [_share(progress, sum(sizes[:index]), size, sum(sizes)) for index, size in enumerate(sizes)]


def _share(progress: Progress, before: int, size: int, total: int) -> Progress:
    def advance(done: int, of: int) -> None:
        progress(before + (size * done // of if of else size), total)

    return advance
