"""``ckpt convert``: a checkpoint file in another format, layout or dtype."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ckptio.cli.options import FORMAT_FLAGS, Json, SourceOptions, format_names, parse_pairs, split_words
from ckptio.cli.progress import ProgressBar
from ckptio.cli.text import escape_lines, print_json, print_note

__all__ = ["convert"]


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The checkpoint to read.", show_default=False)
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="The file to write, or the directory: OUT/ is one.", show_default=False
        ),
    ],
    checkpoint_format: Annotated[
        str | None,
        typer.Option(
            *FORMAT_FLAGS,
            metavar="NAME",
            help="The format of TARGET; without it, the suffix decides.",
            autocompletion=format_names,
            show_default=False,
        ),
    ] = None,
    source_format: Annotated[
        str | None,
        typer.Option(
            "--source_format",
            "--source-format",
            metavar="NAME",
            help="The format of SOURCE; without it, the content decides.",
            autocompletion=format_names,
            show_default=False,
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The program whose names of tensors are wanted.", show_default=False
        ),
    ] = None,
    source_layout: Annotated[
        str | None,
        typer.Option(
            "--source_layout",
            "--source-layout",
            metavar="NAME",
            help="The layout of SOURCE; without it, names and shapes decide.",
            show_default=False,
        ),
    ] = None,
    strip_prefix: Annotated[
        list[str] | None,
        typer.Option(
            "--strip_prefix",
            "--strip-prefix",
            metavar="TEXT",
            help="Take it off the names that begin with it, such as _orig_mod. or module. (repeatable).",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Cast the floating tensors to it.", show_default=False)
    ] = None,
    optimizer_dtype: Annotated[
        str | None,
        typer.Option(
            "--optimizer_dtype",
            "--optimizer-dtype",
            metavar="DTYPE",
            help="Of a step directory, cast the optimizer too, which --dtype leaves alone.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Keep the tensors and leaves that match (repeatable).", show_default=False
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Leave out the tensors and leaves that match (repeatable).",
            show_default=False,
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "-o", metavar="KEY=VALUE", help="An option of the writer (repeatable).", show_default=False
        ),
    ] = None,
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            "--max_shard_size",
            "--max-shard-size",
            metavar="SIZE",
            help="Make TARGET a directory of shards, of up to SIZE each (5GB, 500MB, 1GiB); "
            "short for -o max_shard_size=SIZE.",
            show_default=False,
        ),
    ] = None,
    source_options: SourceOptions = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A hyperparameter that SOURCE does not know (repeatable).",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="The folder whose tokenizer goes along, in place of the one beside SOURCE.",
            show_default=False,
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            help="Accept a loss; the refusal names the word (repeatable, or words with commas).",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", "-f", help="Replace TARGET.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no report and no progress.")] = False,
    as_json: Json = False,
) -> None:
    """Convert a checkpoint to another format.

    TARGET appears whole or not at all, and no loss is silent: what its format cannot hold is refused
    before anything is written, all of it in one message, with the option that accepts a loss.
    The report accounts for every tensor, leaf and metadata key of SOURCE. `ckpt formats NAME` lists
    the options of a format.

    SOURCE may be a step directory of a training run. All its files are converted then, and TARGET is a
    new directory; --dtype, --layout and --config concern the model alone.
    """
    size = [] if max_shard_size is None else [f"max_shard_size={max_shard_size}"]
    pairs: dict[str, Any] = {
        "options": parse_pairs([*(options or ()), *size], "-o"),
        "source_options": parse_pairs(source_options, "-O"),
        "config": parse_pairs(config, "--config"),
    }
    common: dict[str, Any] = {
        "checkpoint_format": checkpoint_format,
        "layout": layout,
        "dtype": dtype,
        "allow": split_words(allow),
    }
    for_files: dict[str, Any] = {
        "source_format": source_format,
        "source_layout": source_layout,
        "strip_prefix": strip_prefix or (),
        "tokenizer": tokenizer,
        "select": select or None,
        "drop": drop or None,
    }
    with ProgressBar(quiet=quiet) as progress:
        if source_format is None and _is_step(source):
            refused = {
                "-O": source_options,
                "--source_layout": source_layout,
                "--strip_prefix": strip_prefix,
                "--tokenizer": tokenizer,
                "--select": select,
                "--drop": drop,
                "--overwrite": overwrite,
            }
            _refuse(refused, "a step directory")
            from ckptio.training.step_conversion import convert_step

            del pairs["source_options"]
            report: Any = convert_step(
                source,
                target,
                optimizer_dtype=optimizer_dtype,
                progress=progress,
                notes=print_note,
                **common,
                **pairs,
            )
        else:
            _refuse({"--optimizer_dtype": optimizer_dtype}, "a checkpoint file")
            from ckptio.conversion import convert as run

            report = run(
                source, target, overwrite=overwrite, progress=progress, **common, **for_files, **pairs
            )
    if as_json:
        print_json(report.to_dict())
    elif not quiet:
        print(escape_lines(report.summary()))


def _is_step(source: str) -> bool:
    path = Path(source)
    if not path.is_dir():
        return False
    from ckptio.cli.step_directory import is_step

    return is_step(path)


def _refuse(given: Mapping[str, object], what: str) -> None:
    for flag, value in given.items():
        if value:
            raise typer.BadParameter(f"it does not go with {what}", param_hint=flag)
