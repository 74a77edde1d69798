"""The typer application: the commands in their order, ``--version``, and the flag that is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from ckptio.cli import convert, diff, formats, inspect, verify
from ckptio.cli.outcome import reported

__all__ = ["command", "gone"]

_GONE = "use_llmc_checkpoint_io"
_REPLACED = (
    "error: --use_llmc_checkpoint_io is gone: --checkpoint_format replaced it "
    "(llmc for llm.c's layout, statedict for the native one)"
)


def command() -> Callable[..., Any]:
    """Return the whole command line, ready to be called with arguments."""
    # Plain help: rich would cost more than all the rest, and would read brackets as markup.
    app = typer.Typer(
        name="ckpt",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_ckpt)
    app.command("convert")(reported(convert.convert))
    app.command("inspect")(reported(inspect.inspect))
    app.command("diff")(reported(diff.diff, trouble=2))
    app.command("verify")(reported(verify.verify))
    app.command("formats")(reported(formats.formats))
    return get_command(app)


def gone(argv: Sequence[str]) -> str | None:
    """Return one line when the switch that ``--checkpoint_format`` replaced is there, in any spelling."""
    for argument in argv:
        if argument == "--":
            break
        if not argument.startswith("-"):
            continue
        name = argument.partition("=")[0].lstrip("-").replace("-", "_").lower()
        if name in (_GONE, f"no_{_GONE}", f"no{_GONE}"):
            return _REPLACED
    return None


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"ckpt {version('ckptio')}")
        raise typer.Exit


def _ckpt(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Convert, inspect, compare and verify the checkpoint files of machine-learning models."""
