"""``ckpt prune``: remove the older checkpoints of a training run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ckptio.cli.options import Json
from ckptio.cli.steps import RunDirectory
from ckptio.cli.text import escape, print_json, print_note

__all__ = ["prune"]


def prune(
    directory: RunDirectory,
    keep: Annotated[
        int,
        typer.Option(metavar="K", min=0, help="How many complete ones stay; 0: all.", show_default=False),
    ],
    protect: Annotated[
        list[int] | None,
        typer.Option(
            metavar="STEP",
            help="A step that stays in any case, one of the K (repeatable).",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "--dry_run", "-n", help="Say what would be removed, and remove nothing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove the complete checkpoints of a training run but the newest.

    Nothing else in the directory is touched: no incomplete checkpoint, no other name, and links are not
    followed.
    """
    from ckptio.training import prune_checkpoints

    os.listdir(directory)  # what is no directory is an error, and nothing to prune
    removed = prune_checkpoints(Path(directory), keep, protect or (), dry_run=dry_run, notes=print_note)
    if as_json:
        print_json({"dry_run": dry_run, "removed": [str(path) for path in removed]})
        return
    for path in removed:
        print(escape(f"{'would remove' if dry_run else 'removed'} {path}"))
    if not removed:
        print("nothing to remove")
