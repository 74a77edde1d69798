"""``ckpt formats``: which formats are installed, what they can hold, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptio.cli.options import Json, format_names
from ckptio.cli.text import escape, print_json, print_table

if TYPE_CHECKING:
    from ckptio.format import Capabilities, Format, Option
    from ckptio.registry import FormatInfo

__all__ = ["formats"]


def formats(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Load this format and show all about it.",
            autocompletion=format_names,
            show_default=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Load every format and show its state.")] = False,
    as_json: Json = False,
) -> int:
    """List the installed formats, or show one.

    Without NAME and --check no plugin is imported. With them the exit status is 1 when a
    format cannot be used.
    """
    from ckptio.registry import registry

    if name is not None:
        return _one(name, as_json=as_json)
    infos = registry().infos()
    states = [(_state(info) if check else info.problem or "") for info in infos]
    if as_json:
        # `problem` is null where nothing is known to be wrong.
        print_json([_described(info, state) for info, state in zip(infos, states, strict=True)])
    else:
        rows = [
            (
                info.name,
                info.distribution,
                info.version,
                info.api,
                state or ("ready" if check else "installed"),
            )
            for info, state in zip(infos, states, strict=True)
        ]
        print_table(("format", "distribution", "version", "plugin API", "state"), rows)
    return int(check and any(states))


def _state(info: FormatInfo) -> str:
    """Load a format and return what is wrong and what helps, on one line; empty when it is ready."""
    from ckptio.errors import CkptError
    from ckptio.registry import registry

    try:
        registry().require(info.name)
    except CkptError as error:
        return " ".join(str(error).split())
    return ""


def _described(info: FormatInfo, problem: str) -> dict[str, Any]:
    return {
        "name": info.name,
        "distribution": info.distribution,
        "version": info.version,
        "api": info.api,
        "module": info.module,
        "problem": problem or None,
    }


def _one(name: str, *, as_json: bool) -> int:
    from ckptio.registry import missing_dependency, registry

    found = registry().load(name)
    info = next(each for each in registry().infos() if each.name == name and each.problem is None)
    missing = missing_dependency(found)
    if as_json:
        print_json(
            _described(info, missing or "")
            | {
                "summary": found.summary,
                "suffixes": list(found.suffixes),
                "capabilities": _capabilities(found.capabilities),
                "read_options": [_option(option) for option in found.read_options],
                "write_options": [_option(option) for option in found.write_options],
            }
        )
    else:
        _print_one(info, found, missing)
    return int(missing is not None)


def _capabilities(capabilities: Capabilities) -> dict[str, Any]:
    needed = capabilities.dependency
    return {
        "dtypes": _dtypes(capabilities),
        "layout": capabilities.layout,
        "runs_layout": capabilities.runs_layout,
        "holds": capabilities.holds,
        "aliases": capabilities.aliases,
        "leaves": capabilities.leaves,
        "metadata": capabilities.metadata,
        "nesting": capabilities.nesting,
        "zero_dim": capabilities.zero_dim,
        "empty": capabilities.empty,
        "shards": capabilities.shards,
        "max_tensor_bytes": capabilities.max_tensor_bytes,
        "writes": capabilities.writes,
        "dependency": None if needed is None else {"module": needed.module, "install": needed.install},
    }


def _dtypes(capabilities: Capabilities) -> list[str]:
    from ckptio.dtypes import DType

    return [dtype.value for dtype in DType if dtype in capabilities.dtypes]


def _option(option: Option) -> dict[str, Any]:
    default = option.default
    return {
        "name": option.name,
        "help": option.help,
        "default": default if isinstance(default, bool | int | float | str | None) else str(default),
        "choices": [str(choice) for choice in option.choices],
    }


def _print_one(info: FormatInfo, found: Format, missing: str | None) -> None:
    can = found.capabilities
    beside = {"ties": can.aliases, "leaves": can.leaves, "metadata": can.metadata}
    run = f"any; the programs for these files run the layout {can.runs_layout}" if can.runs_layout else "any"
    refused = [] if can.zero_dim else ["0-d tensors"]
    refused += [] if can.empty else ["empty tensors"]
    if can.max_tensor_bytes is not None:
        refused.append(f"tensors above {can.max_tensor_bytes:,} bytes")
    lines = {
        info.name: found.summary,
        "state": missing or "ready",
        "plugin": f"{info.module}, from {info.distribution} {info.version}, plugin API {info.api}",
        "suffixes": ", ".join(found.suffixes) or "none",
        "access": "reads and writes" if can.writes else "reads only",
        "holds": "models only" if can.holds == "model" else "any tensors",
        "names": f"those of the layout {can.layout}" if can.layout else run,
        "nesting": "the parts of a name between slashes are nested maps" if can.nesting else "none",
        "shards": "one or several files" if can.shards else "one file",
        "dtypes": ", ".join(_dtypes(can)),
        "in the file": ", ".join(["tensors", *(what for what, inside in beside.items() if inside)]),
        "in a sidecar": ", ".join(what for what, inside in beside.items() if not inside) or "nothing",
        "refused": ", ".join(refused) or "nothing",
    }
    width = max(map(len, lines))
    for key, value in lines.items():
        print(f"{escape(key):{width}}  {escape(value)}")
    for title, flag, options in (
        ("options of the reader", "-O", found.read_options),
        ("options of the writer", "-o", found.write_options),
    ):
        for index, option in enumerate(options):
            if index == 0:
                print(f"\n{title}:")
            choices = f" (one of {', '.join(map(str, option.choices))})" if option.choices else ""
            default = "none" if option.default is None else option.default
            print(escape(f"  {flag} {option.name}=…  {option.help}{choices}; default: {default}"))
