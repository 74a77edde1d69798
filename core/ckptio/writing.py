"""Writing a checkpoint: refuse first, then write aside, read back, and publish with its sidecar."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptio.adapters import expand_aliases
from ckptio.checkpoint import Checkpoint
from ckptio.errors import LossyConversionError, OptionError, PluginError, Problem, UnsupportedError
from ckptio.format import Format
from ckptio.output import Output, check_target, write_file
from ckptio.reading import plugin_at_work
from ckptio.sidecar import difference, is_sidecar, sidecar_path

__all__ = ["Progress", "Written", "check_place", "refuse", "write_checkpoint"]

Progress = Callable[[int, int], None]
"""Called with the bytes of tensors written so far, and the bytes that there are in all."""


@dataclass(frozen=True, slots=True)
class Written:
    """What `write_checkpoint` left: the tensor bytes, and what the target says by itself and by sidecar."""

    tensor_bytes: int
    names: frozenset[str]
    aliases: frozenset[str]
    recorded_leaves: frozenset[str]
    recorded_metadata: frozenset[str]
    recorded_aliases: frozenset[str]
    sidecar: Path | None


def check_place(
    target: Path, *, overwrite: bool, source: Path | None = None, directory: bool = False
) -> None:
    """Refuse a target that cannot be published, before any work; ``directory`` says that it may be one.

    Raises OSError, or `OptionError` when it is the source itself or its sidecar's name is taken.
    """
    if source is not None and target.exists() and os.path.samefile(source, target):
        raise OptionError(f"{target}: source and target are the same file")
    check_target(target, overwrite=overwrite, directory=directory)
    side = sidecar_path(target)
    if not os.path.lexists(side):
        return
    if not is_sidecar(side):
        raise OptionError(
            f"{side}: is in the way and was not written by ckptio; move it or name another target"
        )
    if not overwrite:
        raise FileExistsError(
            17, "A sidecar of this name exists; --overwrite (overwrite=True) replaces it", str(side)
        )


def refuse(
    problems: Sequence[Problem], allow: Collection[str], *, source: str, target: Format
) -> tuple[Problem, ...]:
    """Raise when a problem is final or not accepted; return the losses that are accepted."""
    accepted = tuple(problem for problem in problems if problem.allow is not None and problem.allow in allow)
    open_problems = [problem for problem in problems if problem not in accepted]
    if not open_problems:
        return accepted
    message = f"{source} cannot be held by the format {target.name!r}; nothing was written"
    if all(problem.allow is not None for problem in open_problems):
        raise LossyConversionError(message, open_problems)
    raise UnsupportedError(message, open_problems)


def write_checkpoint(
    checkpoint: Checkpoint,
    target: Path,
    chosen: Format,
    options: Mapping[str, Any],
    *,
    overwrite: bool,
    progress: Progress | None = None,
    before_publishing: Callable[[], None] | None = None,
    make_output: Callable[..., Output] = Output,
) -> Written:
    """Write a checkpoint that `Format.check` has passed; all or nothing.

    The written file is opened again before it gets its name: its header must list every tensor, and
    whatever else it does not say by itself goes into the sidecar. ``make_output`` stands in for `Output`.
    """
    stored = checkpoint if chosen.capabilities.aliases else expand_aliases(checkpoint)
    total = sum(spec.nbytes for spec in stored.specs.values())
    with make_output(target, overwrite=overwrite, on_bytes=_counter(progress, total)) as output:
        with plugin_at_work(chosen, f"writing {target}"):
            chosen.write(stored, output, options)
        output.finish()
        with plugin_at_work(chosen, f"reading back {target}"):
            defaults = {option.name: option.default for option in chosen.read_options}
            written = chosen.open(output.staging, defaults)
        with written:
            _compare(stored, written, chosen)
            side = difference(checkpoint, written, chosen.owns)
            content = side.to_json(output.staging, written) if side else None
            names, aliases = frozenset(written.specs), frozenset(written.aliases)
        checkpoint.check_unchanged()
        if before_publishing is not None:
            before_publishing()
        _publish(output, content, overwrite=overwrite)
    return Written(
        total,
        names,
        aliases,
        frozenset(side.leaves),
        frozenset(side.metadata),
        frozenset(side.aliases),
        sidecar_path(target) if content is not None else None,
    )


def _counter(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    done = 0

    def count(step: int) -> None:
        nonlocal done
        # Headers and padding are written too, but the promise is the bytes of tensors.
        done = min(total, done + step)
        progress(done, total)

    return count


def _compare(wanted: Checkpoint, written: Checkpoint, chosen: Format) -> None:
    """Hold what was written against what was meant, by the headers; a difference is the plugin's fault."""
    for name in wanted.names():
        meant = wanted.specs[wanted.canonical(name)]
        if name not in written:
            raise PluginError(
                f"the writer of {chosen.name!r} lost the tensor {name!r}; nothing was published"
            )
        found = written.specs[written.canonical(name)]
        if (found.dtype, found.shape) != (meant.dtype, meant.shape):
            raise PluginError(
                f"the writer of {chosen.name!r} made {name!r} {found.dtype.value} {found.shape} "
                f"of {meant.dtype.value} {meant.shape}; nothing was published"
            )


def _publish(output: Output, content: bytes | None, *, overwrite: bool) -> None:
    """Publish target and sidecar; whatever fails before the target has its name restores the old sidecar.

    The sidecar goes first: a crash between the two leaves no target without what was recorded of it.
    """
    side = sidecar_path(output.target)
    old = side.read_bytes() if side.exists() else None
    if content is not None:
        write_file(side, content, overwrite=overwrite)
    try:
        output.publish()
    except BaseException:
        if not output.published and content is not None:
            if old is None:
                side.unlink()
            else:
                write_file(side, old, overwrite=True)
        raise
    if content is None and old is not None:
        with contextlib.suppress(FileNotFoundError):
            side.unlink()
