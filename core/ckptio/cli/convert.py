"""``ckpt convert``: a checkpoint file in another format, layout or dtype."""

from __future__ import annotations

from typing import Annotated

import typer

from ckptio.cli.options import FORMAT_FLAGS, Json, SourceOptions, format_names, parse_pairs, split_words
from ckptio.cli.progress import ProgressBar
from ckptio.cli.text import escape_lines, print_json

__all__ = ["convert"]


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The checkpoint to read.", show_default=False)
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="The file, or directory of shards, to write.", show_default=False
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
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Cast the floating tensors to it.", show_default=False)
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
    """
    size = [] if max_shard_size is None else [f"max_shard_size={max_shard_size}"]
    pairs = {
        "options": parse_pairs([*(options or ()), *size], "-o"),
        "source_options": parse_pairs(source_options, "-O"),
        "config": parse_pairs(config, "--config"),
    }
    from ckptio.conversion import convert as run

    with ProgressBar(quiet=quiet) as progress:
        report = run(
            source,
            target,
            checkpoint_format=checkpoint_format,
            source_format=source_format,
            layout=layout,
            dtype=dtype,
            select=select or None,
            drop=drop or None,
            allow=split_words(allow),
            overwrite=overwrite,
            progress=progress,
            **pairs,
        )
    if as_json:
        print_json(report.to_dict())
    elif not quiet:
        print(escape_lines(report.summary()))
