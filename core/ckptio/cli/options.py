"""The options that several commands share, and how ``key=value`` is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

__all__ = [
    "FORMAT_FLAGS",
    "CheckpointFormat",
    "CheckpointPath",
    "Json",
    "SourceOptions",
    "format_names",
    "parse_pairs",
    "split_words",
]


def format_names(incomplete: str) -> list[str]:
    """Return the installed formats that a shell can complete ``incomplete`` to; no plugin is imported."""
    from ckptio.registry import registry

    return [name for name in registry().names() if name.startswith(incomplete)]


FORMAT_FLAGS = ("--checkpoint_format", "--checkpoint-format")

CheckpointPath = Annotated[str, typer.Argument(metavar="PATH", help="The checkpoint.", show_default=False)]
CheckpointFormat = Annotated[
    str | None,
    typer.Option(
        *FORMAT_FLAGS,
        metavar="NAME",
        help="The format of the checkpoint; without it, the content decides.",
        autocompletion=format_names,
        show_default=False,
    ),
]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option("-O", metavar="KEY=VALUE", help="An option of the reader (repeatable).", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def parse_pairs(pairs: Iterable[str] | None, flag: str) -> dict[str, str]:
    """Return the values of a repeatable ``key=value`` option; a usage error where there is no such pair."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=flag)
        if key in found:
            raise typer.BadParameter(f"{key!r} is given twice", param_hint=flag)
        found[key] = value
    return found


def split_words(values: Iterable[str] | None) -> tuple[str, ...]:
    """Return the words of a repeatable option that also takes comma lists."""
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())
