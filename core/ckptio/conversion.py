"""`convert`: check first, then write, and account for every tensor, leaf and metadata key."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptio.accounting import account
from ckptio.checkpoint import Checkpoint
from ckptio.detect import choose_reader, choose_writer
from ckptio.dtypes import DType
from ckptio.errors import OptionError
from ckptio.folders import CONFIG, GENERATION, model_folder
from ckptio.format import SHARD_SIZE, Format
from ckptio.job import Job
from ckptio.output import Output
from ckptio.reading import open_as
from ckptio.registry import registry
from ckptio.report import ConversionReport
from ckptio.tokenizer import TOKENIZER_OPTION, TOKENIZERS, asked_tokenizer, option_with_tokenizer
from ckptio.trainer_file import config_beside
from ckptio.weights import INDEX_SUFFIX
from ckptio.writing import Progress, check_place

__all__ = ["convert", "save_checkpoint"]


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    checkpoint_format: str | None = None,
    source_format: str | None = None,
    layout: str | None = None,
    source_layout: str | None = None,
    strip_prefix: str | Sequence[str] = (),
    dtype: str | DType | None = None,
    select: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    allow: Collection[str] = (),
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ConversionReport:
    """Convert a checkpoint file to another format; the target appears whole or not at all.

    ``checkpoint_format`` is the target's format (else its suffix decides), ``source_format`` the
    source's (else its content decides). ``layout`` names the program whose tensor names are wanted,
    ``source_layout`` the one whose names the source has (else its names and shapes decide) once
    ``strip_prefix``, such as ``_orig_mod.``, is off them. ``dtype`` casts the floating tensors,
    ``select`` and ``drop`` are globs over names of tensors and paths of leaves, ``config`` adds
    hyperparameters, ``allow`` accepts losses by their word. ``tokenizer`` is a folder whose files of a
    tokenizer go along, in place of those beside the source.
    ``progress`` is called with the bytes done and the bytes in all.

    A target that ends in ``/``, or is a directory, becomes a folder of shards where the format has them;
    with the layout ``hf`` it is one that transformers loads.

    Raises `UnsupportedError` that lists everything the target cannot hold, `LossyConversionError` when
    all of it can be accepted, `OptionError`, `FormatError`, `CheckpointError`, and OSError.
    """
    began = time.monotonic()
    asked, source, target = os.fspath(target), Path(source), Path(target)
    reader = choose_reader(source, source_format, registry())
    directory = asked.endswith(os.sep) or target.is_dir()
    writer = choose_writer(target, checkpoint_format, registry(), directory=directory)
    check_place(target, overwrite=overwrite, source=source, directory=writer.format.capabilities.shards)
    folder = None if tokenizer is None else asked_tokenizer(Path(tokenizer))
    own = model_folder(source)
    given = option_with_tokenizer(
        writer.format, options, folder, layout=layout or writer.format.capabilities.layout, own=own
    )
    chosen = _for_directory(writer.format, given, asked if directory else None, folder)
    with open_as(reader, source, source_options) as opened:
        _check_apart(opened, source, target, own)
        job = Job(opened, writer.format, chosen, allow)
        job.configure(config)
        job.choose(select, drop)
        job.strip(strip_prefix)
        job.arrange(layout, source_layout, config_beside(source))
        job.cast(dtype)
        make_output = job.furnish(own, target, folder)
        written = job.write(target, str(source), overwrite, progress, make_output)
        return account(job, str(source), str(target), reader.format.name, written, time.monotonic() - began)


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
    job = Job(checkpoint, writer.format, options, ())
    job.arrange(None)
    written = job.write(target, "the state dict", overwrite, None, make_output)
    return account(job, "memory", str(target), "memory", written, time.monotonic() - began)


def _check_apart(opened: Checkpoint, source: Path, target: Path, folder: Path | None) -> None:
    """Raise `OptionError` when the target is one of the several files that the source is made of."""
    if not target.is_file():
        return
    beside = target.name.endswith(INDEX_SUFFIX) or target.name in {CONFIG, GENERATION, *TOKENIZERS}
    in_folder = folder is not None and folder.samefile(target.parent)
    if opened.reads(target) or (beside and in_folder):
        raise OptionError(f"{target}: is a file of the source, {source}; name another target")


def _for_directory(
    chosen: Format, given: dict[str, Any], directory: str | None, tokenizer: Path | None
) -> Mapping[str, Any]:
    """Return the writer's options for a target that is a ``directory``, by its name, or a file where None.

    Raises `OptionError` where there is no place for such a target, or in it for a ``tokenizer``.
    """
    if directory is not None and not chosen.capabilities.shards:
        what = f"the format {chosen.name!r} writes one file, not a directory"
        raise OptionError(f"{directory}: {what}; name it without {os.sep!r}")
    if directory is not None and chosen.makes_shards:
        given.setdefault(SHARD_SIZE, "50GB")
    if tokenizer is not None and not given.keys() & {SHARD_SIZE, TOKENIZER_OPTION}:
        what = f"--tokenizer: a file of the format {chosen.name!r} has no place for a tokenizer"
        raise OptionError(f"{what}; a folder has: name TARGET/" if chosen.makes_shards else what)
    return given
