"""The typer application: the commands in their order, ``--version``, and the flag that is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from ckptio.cli import compare_loss, convert, diff, formats, inspect, prune, steps, verify
from ckptio.cli.outcome import reported

__all__ = ["command", "gone"]

_GONE = "use_llmc_checkpoint_io"
_NUMBERS = ("atol", "rtol", "keep", "protect")
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
    app.command("steps")(reported(steps.steps))
    app.command("prune")(reported(prune.prune))
    app.command("compare-loss")(reported(compare_loss.compare_loss, trouble=2))
    app.command("formats")(reported(formats.formats))
    whole: Any = get_command(app)
    for each in (whole, *whole.commands.values()):
        _take_text_as_it_is(each)
    return whole  # type: ignore[no-any-return]


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


def _take_text_as_it_is(command: Any) -> None:
    """Let text, lists of it and what was not given pass without typer's coercion.

    They need none, and where it is done by pydantic, importing that costs as much as numpy.
    """
    get_params = command.get_params

    # The parameters in `command.params` lack `--help`, which is made when it is first asked for.
    def with_text(context: typer.Context) -> list[Any]:
        parameters: list[Any] = get_params(context)
        for parameter in parameters:
            if "process_value" not in vars(parameter):
                parameter.process_value = _quick(parameter)
        return parameters

    command.get_params = with_text


def _quick(parameter: Any) -> Callable[[typer.Context, Any], Any]:
    coerce: Callable[[typer.Context, Any], Any] = parameter.process_value

    def process_value(context: typer.Context, value: Any) -> Any:
        if value is None and not parameter.required:
            return None
        if parameter.name in _NUMBERS:
            return coerce(context, value)
        if isinstance(value, str):
            return value
        if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
            return list(value)
        return coerce(context, value)

    return process_value


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
