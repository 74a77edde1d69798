"""One conversion on its way: the checkpoint as adapted so far, and what stands in the way."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptio.adapters import Annotated, rename, select
from ckptio.checkpoint import Checkpoint
from ckptio.dtypes import DType
from ckptio.errors import OptionError, Problem, UnsupportedError, some
from ckptio.folder_plan import plan_folder
from ckptio.format import SHARD_SIZE, Format, parse_options
from ckptio.models import (
    LayoutResult,
    apply_layout,
    architecture,
    config_from_hf,
    configured,
    contradictions,
    normalise_config,
    parse_config_value,
    recognise,
)
from ckptio.models.moves import Moved, chain
from ckptio.models.reshaping import f32_names
from ckptio.output import Output
from ckptio.reading import plugin_at_work
from ckptio.tokenizer import NO_TOKENIZER, lacks_tokenizer
from ckptio.trainer_file import believe
from ckptio.transforms import Cast
from ckptio.writing import Progress, Written, refuse, write_checkpoint

__all__ = ["Job"]

_HF = "hf"


class Job:
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
        self.moved: dict[str, Moved] = {}
        self.notes: tuple[str, ...] = ()
        self.hint: str | None = None
        self.casting: Cast | None = None
        self.problems: list[Problem] = list(source.omissions())
        self.accepted: tuple[Problem, ...] = ()
        self.altered: Mapping[str, str] = {}

    def configure(self, config: Mapping[str, Any] | None) -> None:
        """Add hyperparameters to ``metadata["config"]``."""
        if not config:
            return
        given = {
            key: parse_config_value(key, value) if isinstance(value, str) else value
            for key, value in config.items()
        }
        self.configured = normalise_config(given)
        known = configured(self.current.metadata.get("config") or {}, self.configured)
        metadata = {**self.current.metadata, "config": known}
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

    def strip(self, prefixes: str | Sequence[str]) -> None:
        """Take prefixes off the names that have them."""
        for prefix in [prefixes] if isinstance(prefixes, str) else prefixes:
            names = {name: name.removeprefix(prefix) for name in self.current if name.startswith(prefix)}
            if not names or not prefix:
                raise OptionError(f"--strip_prefix {prefix!r} matches no tensor")
            taken = [old for old, new in names.items() if not new or new in self.current]
            if taken:
                what = f"--strip_prefix {prefix!r}: without it, a name is empty or taken already"
                raise OptionError(f"{what}: {some(taken)}")
            self.current = rename(self.current, names)
            self.moved = chain(self.moved, {old: Moved((new,), ("renamed",)) for old, new in names.items()})

    def arrange(
        self, layout: str | None, source_layout: str | None = None, beside: Mapping[str, Any] | None = None
    ) -> None:
        """Bring the tensors into the layout that is asked for, or that the format is bound to.

        ``beside`` are hyperparameters that lie beside the model: believed where the shapes agree.
        """
        bound = self.format.capabilities.layout
        if layout is not None and bound is not None and layout != bound:
            raise OptionError(
                f"the format {self.format.name!r} holds the layout {bound!r} only, not {layout!r}"
            )
        wanted = layout or bound
        if wanted is None:
            if source_layout is not None:
                raise OptionError("--source_layout says what --layout is to change; pass that too")
            self.problems += contradictions(self.current, self.configured)
            return
        self.current, told, self.hint = believe(self.current, beside or {})
        self.notes += told
        self.layout = apply_layout(self.current, wanted, source_layout)
        self.problems += self.layout.problems
        self.current = self.layout.checkpoint
        self.moved = chain(self.moved, self.layout.moved)
        found = self.layout.recognised
        # The programs with names of their own say less, or more, of a model than those that train it.
        if (
            found is not None
            and wanted not in (_HF, *found.layouts)
            and architecture(found.architecture).prefixes.keys() & {*found.layouts}
        ):
            config, problems = config_from_hf(self.current.metadata.get("config") or {}, found, wanted)
            self.problems += problems
            self.current = Annotated(self.current, metadata={**self.current.metadata, "config": config})

    def cast(self, dtype: str | DType | None) -> None:
        """Cast the source's floating tensors, and nothing that the layout added."""
        if dtype is None:
            return
        wanted = DType.parse(dtype) if isinstance(dtype, str) else dtype
        added = self.layout.added if self.layout is not None else {}
        names = self.current.specs.keys() - added.keys()
        f32 = self._f32() if wanted.itemsize < DType.F32.itemsize else frozenset()
        if f32:
            # What the programs of the layout take as f32 alone becomes that, and no less.
            names -= f32
            wide = Cast(self.current, DType.F32, f32)
            self.problems += wide.overflows()
            self.current = wide
        self.casting = Cast(self.current, wanted, names)
        self.current = self.casting
        if "overflow" not in self.allow:
            self.problems += self.casting.overflows()

    def _f32(self) -> frozenset[str]:
        """Return what the programs of the layout, or else of the target's files, take as f32 alone."""
        if self.layout is not None:
            return self.layout.f32
        runs, found = self.format.capabilities.runs_layout, recognise(self.current)
        if runs is None or found is None or runs not in found.layouts:
            return frozenset()
        return frozenset(f32_names(architecture(found.architecture), runs, found.sizes)) & {
            *self.current.specs
        }

    @property
    def cast_names(self) -> frozenset[str]:
        """The stored names that have another dtype than in the source."""
        names = frozenset(self.casting.cast_names if self.casting is not None else ())
        return names | (self.layout.widened if self.layout is not None else frozenset())

    def furnish(self, own: Path | None, target: Path, tokenizer: Path | None) -> Callable[..., Output]:
        """Plan the folder ``target`` where one is made, and return what makes the output.

        ``own`` is the model's folder that the source is or lies in.
        """
        wanted = self.layout.layout if self.layout is not None else None
        runs = _HF if self.options.get(SHARD_SIZE) is not None else self.format.capabilities.runs_layout
        other = _other_layout(self.current, runs) if wanted is None else ()
        if self.options.get(SHARD_SIZE) is None:
            if lacks_tokenizer(self.format, self.options, wanted, self.current.metadata):
                self.notes += (NO_TOKENIZER,)
            self.notes += other
            return Output
        recognised = self.layout.recognised if self.layout is not None and wanted == _HF else None
        cast_to = self.casting.dtype if self.casting is not None else None
        plan = plan_folder(
            self.current,
            own,
            target,
            suffixes=self.format.suffixes,
            recognised=recognised,
            cast_to=cast_to,
            tokenizer=tokenizer,
        )
        self.problems += plan.problems
        self.notes += plan.notes + other
        self.current = plan.checkpoint
        return plan.make_output

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
            found = self.format.check(self.current, self.options)
        # On the way between two layouts, tensors have names that neither of them knows.
        unfinished = self.layout is not None and self.layout.problems
        halfway = {*self.current.specs} - {*self.source} if unfinished else set()
        self.problems += [problem for problem in found if problem.where not in halfway]
        # The layout and the format may say the same of a tensor, in the same words.
        problems = tuple(dict.fromkeys(self.problems))
        try:
            self.accepted = refuse(problems, self.allow, source=source, target=self.format)
        except UnsupportedError as error:
            if self.hint is not None:
                error.add_note(self.hint)
            raise
        with plugin_at_work(self.format, f"writing {target}"):
            self.altered = self.format.alters(self.current, self.options)
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


def _other_layout(checkpoint: Checkpoint, runs: str | None) -> tuple[str, ...]:
    """Return a note where a model is written in another layout than the programs for its files run."""
    found = recognise(checkpoint) if runs is not None else None
    if found is None or not found.layouts or runs in found.layouts:
        return ()
    own = ", ".join(found.layouts)
    return (f"layout: the names are those of {own}; what runs such files wants {runs}: pass --layout {runs}",)


def _matching(names: Sequence[str], patterns: Sequence[str], flag: str) -> set[str]:
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matched = set(fnmatch.filter(names, pattern)) | ({pattern} & set(names))
        if not matched:
            raise OptionError(f"{flag} {pattern!r} matches no tensor and no leaf")
        found |= matched
    return found
