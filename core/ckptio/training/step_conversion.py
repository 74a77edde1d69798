"""A whole step directory in another format: all its parts, its trainer state, a manifest of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptio.conversion import convert
from ckptio.detect import choose_writer
from ckptio.errors import OptionError, UnsupportedError
from ckptio.output import check_target, fsync_directory, write_file
from ckptio.publishing import publish_new
from ckptio.registry import registry
from ckptio.report import ConversionReport
from ckptio.trainer_file import STATE_FILE, read_document
from ckptio.training.gathering import BESIDE_MODELS
from ckptio.training.leftovers import hidden_name, locked_directory
from ckptio.training.manifest import MANIFEST, Manifest
from ckptio.training.notes import Notes
from ckptio.training.steps import Step, find_step, is_run, step_of_name
from ckptio.training.writing import all_files, part_path
from ckptio.writing import Progress

__all__ = ["StepReport", "convert_step"]


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

    ``checkpoint_format`` is needed: a directory has no suffix to tell it by. ``layout``, ``dtype``
    and ``config`` are as for `ckptio.convert` and concern the model; the optimizer is cast only by
    ``optimizer_dtype``, and further states never are. ``options`` are the format's own. Where it holds
    models only, what is beside the model is in statedict. The trainer state stays what it was, but for
    the name of the format.

    Raises as `ckptio.convert` does, and `IncompleteCheckpointError` for a source that cannot be resumed.
    """
    source, target = Path(source), Path(target)
    step = _complete_step(source, target, notes)
    chosen = choose_writer(target, checkpoint_format, registry()).format
    beside = chosen if chosen.capabilities.holds == "any" else registry().require(BESIDE_MODELS)
    if os.path.lexists(target):
        raise FileExistsError(
            17, "A step directory takes no other's place; move it or name another", str(target)
        )
    check_target(target, overwrite=False)
    if layout == "hf" and "optimizer" in step.files:
        model = step.files["model"][0]
        raise OptionError(f"an optimizer's state has no layout 'hf'; convert the model alone: {model}")
    if optimizer_dtype is not None and "optimizer" not in step.files:
        raise OptionError(f"{source} has no optimizer that could be cast")
    known = dict(step.state.config) if step.state is not None and chosen.capabilities.layout else {}
    for_model = {"layout": layout, "dtype": dtype, "config": {**known, **(config or {})}}
    its_own: dict[str, dict[str, Any]] = {"model": for_model, "optimizer": {"dtype": optimizer_dtype}}
    shares = _shares(progress, [_size(file) for file, _ in step.files.values()])
    reports, parts = {}, {}
    with locked_directory(staging := hidden_name(target)):
        for (name, (file, kind)), share in zip(step.files.items(), shares, strict=True):
            format_ = chosen if name == "model" else beside
            its_options = (options or {}) if format_ is chosen else {}
            inside = part_path(name, format_, its_options)
            parts[name] = inside, format_.name
            arguments = {"options": its_options, "allow": allow, "progress": share, **its_own.get(name, {})}
            with _blamed(name):
                report = convert(
                    file, staging / inside, source_format=kind, checkpoint_format=format_.name, **arguments
                )
            reports[name] = _published(report, target / inside)
        _write_state(step, staging, chosen.name)
        manifest = Manifest(step.step, parts, all_files(staging, {}))
        write_file(staging / MANIFEST, manifest.to_json(), overwrite=False)
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


@contextlib.contextmanager
def _blamed(name: str) -> Iterator[None]:
    """Add to a refusal which part it is about."""
    try:
        yield
    except UnsupportedError as error:
        error.add_note(f"that is the part {name!r}; nothing of the step directory was converted")
        raise


def _published(report: ConversionReport, target: Path) -> ConversionReport:
    """Return the report with the names that the files have in the end."""
    sidecar = None if report.sidecar is None else str(target.with_name(Path(report.sidecar).name))
    return dataclasses.replace(report, target=str(target), sidecar=sidecar)


def _write_state(step: Step, staging: Path, checkpoint_format: str) -> None:
    # The document and not the parsed state: what else is in it stays as it is.
    document = {**read_document(step.path / STATE_FILE), "checkpoint_format": checkpoint_format}
    data = json.dumps(document, indent=2, allow_nan=False).encode("ascii") + b"\n"
    write_file(staging / STATE_FILE, data, overwrite=False)


def _size(file: Path) -> int:
    files = file.rglob("*") if file.is_dir() else [file]
    return sum(each.stat().st_size for each in files if each.is_file())


def _shares(progress: Progress | None, sizes: list[int]) -> list[Progress | None]:
    """Return a progress for each part that moves the one of the whole by the part's share."""
    if progress is None:
        return [None] * len(sizes)
    return [_share(progress, sum(sizes[:index]), size, sum(sizes)) for index, size in enumerate(sizes)]


def _share(progress: Progress, before: int, size: int, total: int) -> Progress:
    def advance(done: int, of: int) -> None:
        progress(before + (size * done // of if of else size), total)

    return advance
