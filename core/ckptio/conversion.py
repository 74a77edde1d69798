"""`convert`: check first, then write, and account for every tensor, leaf and metadata key."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptio.adapters import Annotated, select
from ckptio.checkpoint import Checkpoint
from ckptio.detect import choose_reader, choose_writer
from ckptio.dtypes import DType
from ckptio.errors import OptionError, Problem
from ckptio.format import Format, parse_options
from ckptio.models import apply_layout, normalise_config, parse_config_value
from ckptio.models.layouts import LayoutResult
from ckptio.output import Output
from ckptio.reading import open_as, plugin_at_work
from ckptio.registry import registry
from ckptio.report import ConversionReport, Fate
from ckptio.transforms import Cast
from ckptio.writing import Progress, Written, check_place, refuse, write_checkpoint

if TYPE_CHECKING:
    pass

__all__ = ["convert", "save_checkpoint"]


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    checkpoint_format: str | None = None,
    source_format: str | None = None,
    layout: str | None = None,
    dtype: str | DType | None = None,
    select: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert a checkpoint file to another format; the target appears whole or not at all.

    ``checkpoint_format`` is the target's format (else its suffix decides), ``source_format`` the
    source's (else its content decides). ``layout`` names the program whose tensor names are wanted,
    ``dtype`` casts the floating tensors, ``select`` and ``drop`` are globs over names of tensors and
    paths of leaves, ``config`` adds hyperparameters, ``allow`` accepts losses by their word.
    ``progress`` is called with the bytes done and the bytes in all.

    Raises `UnsupportedError` that lists everything the target cannot hold, `LossyConversionError` when
    all of it can be accepted, `OptionError`, `FormatError`, `CheckpointError`, and OSError.
    """
    began = time.monotonic()
    source, target = Path(source), Path(target)
    reader = choose_reader(source, source_format, registry())
    writer = choose_writer(target, checkpoint_format, registry())
    check_place(target, overwrite=overwrite, source=source, directory=writer.format.capabilities.shards)
    with open_as(reader, source, source_options) as opened:
        job = _Job(opened, writer.format, options, allow)
        job.configure(config)
        job.choose(select, drop)
        job.arrange(layout)
        job.cast(dtype)
        written = job.write(target, str(source), overwrite, progress)
        return job.report(str(source), str(target), reader.format.name, written, time.monotonic() - began)


def save_checkpoint(
    checkpoint: Checkpoint,
    path: str | os.PathLike[str],
    *,
    checkpoint_format: str | None = None,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    make_output: Callable[..., Output] = Output,
) -> ConversionReport:
    """Save a checkpoint that is no file, as `ckptio.save` does; its tensors are read one after the other.

    ``make_output`` stands in for `ckptio.Output`.
    """
    began = time.monotonic()
    target = Path(path)
    writer = choose_writer(target, checkpoint_format, registry())
    check_place(target, overwrite=overwrite, directory=writer.format.capabilities.shards)
    job = _Job(checkpoint, writer.format, options, ())
    job.arrange(None)
    written = job.write(target, "the state dict", overwrite, None, make_output)
    return job.report("memory", str(target), "memory", written, time.monotonic() - began)


class _Job:
    """One conversion on its way: the checkpoint as adapted so far, and what was done to it."""

    def __init__(
        self, source: Checkpoint, chosen: Format, options: Mapping[str, Any] | None, allow: Collection[str]
    ) -> None:
        self.source = self.current = source
        self.format = chosen
        self.allow = (allow,) if isinstance(allow, str) else allow
        self.options = parse_options(
            chosen.write_options, options, owner=f"the format {chosen.name!r}", flag="-o"
        )
        self.configured: dict[str, Any] = {}
        self.layout: LayoutResult | None = None
        self.casting: Cast | None = None
        self.problems: list[Problem] = list(source.omissions())
        self.accepted: tuple[Problem, ...] = ()

    def configure(self, config: Mapping[str, Any] | None) -> None:
        """Add hyperparameters to ``metadata["config"]``."""
        if not config:
            return
        given = {
            key: parse_config_value(key, value) if isinstance(value, str) else value
            for key, value in config.items()
        }
        self.configured = normalise_config(given)
        known = normalise_config(self.current.metadata.get("config") or {})
        metadata = {**self.current.metadata, "config": {**known, **self.configured}}
        self.current = Annotated(self.current, metadata=metadata)

    def choose(self, keep: Sequence[str] | None, drop: Sequence[str] | None) -> None:
        """Keep what matches one of ``keep`` (all, when None) and none of ``drop``."""
        if keep is None and not drop:
            return
        names = [*self.current.names(), *self.current.leaves]
        kept = _matching(names, keep, "--select") if keep is not None else set(names)
        kept -= _matching(names, drop, "--drop") if drop else set()
        leaves = {path: leaf for path, leaf in self.current.leaves.items() if path in kept}
        self.current = Annotated(select(self.current, kept), leaves=leaves)

    def arrange(self, layout: str | None) -> None:
        """Bring the tensors into the layout that is asked for, or that the format is bound to."""
        bound = self.format.capabilities.layout
        if layout is not None and bound is not None and layout != bound:
            raise OptionError(
                f"the format {self.format.name!r} holds the layout {bound!r} only, not {layout!r}"
            )
        wanted = layout or bound
        if wanted is None:
            return
        self.layout = apply_layout(self.current, wanted)
        self.problems += self.layout.problems
        self.current = self.layout.checkpoint

    def cast(self, dtype: str | DType | None) -> None:
        """Cast the source's floating tensors, and nothing that the layout added."""
        if dtype is None:
            return
        wanted = DType.parse(dtype) if isinstance(dtype, str) else dtype
        added = self.layout.added if self.layout is not None else {}
        self.casting = Cast(self.current, wanted, self.current.specs.keys() - added.keys())
        self.current = self.casting
        if "overflow" not in self.allow:
            self.problems += self.casting.overflows()

    def write(
        self,
        target: Path,
        source: str,
        overwrite: bool,
        progress: Progress | None,
        make_output: Callable[..., Output] = Output,
    ) -> Written:
        """Refuse what cannot be held, else write."""
        with plugin_at_work(self.format, f"checking {source}"):
            self.problems += self.format.check(self.current, self.options)
        # The layout and the format may say the same of a tensor, in the same words.
        problems = tuple(dict.fromkeys(self.problems))
        self.accepted = refuse(problems, self.allow, source=source, target=self.format)
        written = write_checkpoint(
            self.current,
            target,
            self.format,
            self.options,
            overwrite=overwrite,
            progress=progress,
            make_output=make_output,
        )
        if self.casting is not None:
            self.accepted += self.casting.losses()
        return written

    def report(
        self, source: str, target: str, source_format: str, written: Written, seconds: float
    ) -> ConversionReport:
        """Account for everything that the source had."""
        fates = [self._tensor(name, written) for name in self.source.names()]
        kept = self.current.leaves
        for path in self.source.leaves:
            action = "recorded" if path in written.recorded_leaves else "kept" if path in kept else "dropped"
            fates.append(Fate("leaf", path, (action,), path if path in kept else None))
        keys = {**self.source.metadata, **self.current.metadata}
        for key in keys:
            if key in written.recorded_metadata:
                action = "recorded"
            elif key == self.format.name:
                action = "rewritten"
            else:
                action = "kept"
            detail = ", ".join(f"{k}={v}" for k, v in self.configured.items()) if key == "config" else ""
            fates.append(Fate("metadata", key, (action,), key, detail))
        return ConversionReport(
            source,
            target,
            source_format,
            self.format.name,
            tuple(fates),
            dict(self.layout.added) if self.layout is not None else {},
            tuple(str(dataclasses.replace(problem, allow=None)) for problem in self.accepted),
            str(written.sidecar) if written.sidecar is not None else None,
            written.tensor_bytes,
            seconds,
        )

    def _tensor(self, name: str, written: Written) -> Fate:
        layout = self.layout
        if layout is not None and name in layout.derived:
            return Fate("tensor", name, ("derived",), None, layout.derived[name])
        if name not in self.current:
            return Fate("tensor", name, ("dropped",), None, "on request")
        canonical = self.current.canonical(name)
        how = "cast" if self.casting is not None and canonical in self.casting.cast_names else "copied"
        actions = [how]
        detail = ""
        if name != canonical:
            in_full = name in written.names
            actions = [how, "tied"] if in_full else ["tied"]
            detail = f"{'stored in full; tied' if in_full else 'shares storage'} with {canonical}"
            if canonical not in self.source:
                # The tensor has come to be stored under another name, and its own is now an alias.
                return Fate("tensor", name, (how, "renamed", "tied"), canonical, detail)
        return Fate("tensor", name, tuple(actions), name, detail)


def _matching(names: Sequence[str], patterns: Sequence[str], flag: str) -> set[str]:
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matched = set(fnmatch.filter(names, pattern)) | ({pattern} & set(names))
        if not matched:
            raise OptionError(f"{flag} {pattern!r} matches no tensor and no leaf")
        found |= matched
    return found
