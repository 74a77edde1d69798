"""``ckpt inspect``: what is in a checkpoint."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptio.cli.options import CheckpointFormat, CheckpointPath, Json, SourceOptions, parse_pairs
from ckptio.cli.progress import ProgressBar
from ckptio.cli.text import byte_count, escape, print_json, print_table, shortened

if TYPE_CHECKING:
    from ckptio.checkpoint import Checkpoint
    from ckptio.detect import Choice
    from ckptio.statistics import Statistics

__all__ = ["describe", "inspect", "print_description"]


def inspect(
    checkpoint_path: CheckpointPath,
    checkpoint_format: CheckpointFormat = None,
    source_options: SourceOptions = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", metavar="GLOB", help="List the tensors that match (repeatable).", show_default=False
        ),
    ] = None,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Read the listed tensors: min, max and mean of the finite elements (of the magnitudes, "
            "where they are complex), and how many are NaN and infinite.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what is in a checkpoint.

    Its format, hyperparameters, tensors, ties, leaves and metadata; only the header is read, unless
    --stats asks for more. PATH may be a step directory of a training run: then its trainer state, and
    all of that for each of its files.
    """
    path = Path(checkpoint_path)
    options = parse_pairs(source_options, "-O")
    if checkpoint_format is None and path.is_dir():
        from ckptio.cli.step_directory import inspect_step, is_step

        if is_step(path):
            inspect_step(path, options, filters=filters, stats=stats, as_json=as_json)
            return
    about = describe(path, checkpoint_format, options, filters=filters, stats=stats)
    if as_json:
        print_json(about)
    else:
        print_description(about, stats=stats)


def describe(
    path: Path,
    checkpoint_format: str | None,
    options: Mapping[str, str],
    *,
    filters: list[str] | None,
    stats: bool,
) -> dict[str, Any]:
    """Return what is in a checkpoint file, as JSON values."""
    from ckptio.detect import choose_reader
    from ckptio.reading import open_as
    from ckptio.registry import registry

    choice = choose_reader(path, checkpoint_format, registry())
    with open_as(choice, path, options) as checkpoint:
        listed = _listed(checkpoint, filters)
        found = _statistics(checkpoint, listed) if stats else None
        return _about(checkpoint, choice, path) | {"tensors": _tensors(checkpoint, listed, found)}


def print_description(about: dict[str, Any], *, stats: bool) -> None:
    """Print what `describe` returned."""
    _print_summary(about)
    print()
    _print_tensors(about["tensors"], stats=stats)


def _listed(checkpoint: Checkpoint, filters: list[str] | None) -> list[str]:
    from ckptio.errors import OptionError

    names = checkpoint.names()
    if not filters:
        return names
    listed = [name for name in names if any(fnmatch.fnmatchcase(name, glob) for glob in filters)]
    if not listed:
        raise OptionError(f"--filter {', '.join(map(repr, filters))} matches none of {len(names)} tensors")
    return listed


def _statistics(checkpoint: Checkpoint, listed: Iterable[str]) -> dict[str, Statistics]:
    """Read every listed tensor once, in file order; the result is by the name that is stored."""
    from ckptio.statistics import statistics

    wanted = {checkpoint.canonical(name) for name in listed}
    specs = [spec for name, spec in checkpoint.specs.items() if name in wanted]
    total = sum(spec.nbytes for spec in specs)
    done = 0
    with ProgressBar() as progress:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(done, total)

        return {spec.name: statistics(checkpoint, spec.name, on_bytes=advance) for spec in specs}


def _about(checkpoint: Checkpoint, choice: Choice, path: Path) -> dict[str, Any]:
    from ckptio.leaves import encode_leaf

    specs = checkpoint.specs.values()
    dtypes: dict[str, dict[str, int]] = {}
    for spec in specs:
        sums = dtypes.setdefault(spec.dtype.value, {"tensors": 0, "parameters": 0, "bytes": 0})
        for key, count in (("tensors", 1), ("parameters", spec.size), ("bytes", spec.nbytes)):
            sums[key] += count
    return {
        "path": str(path),
        "format": choice.format.name,
        "reason": choice.reason,
        "file_bytes": _file_bytes(path),
        "names": len(checkpoint),
        "stored": len(checkpoint.specs),
        "parameters": sum(spec.size for spec in specs),
        "tensor_bytes": sum(spec.nbytes for spec in specs),
        "dtypes": dtypes,
        "config": checkpoint.metadata.get("config", {}),
        "ties": dict(checkpoint.aliases),
        "leaves": {where: encode_leaf(leaf) for where, leaf in checkpoint.leaves.items()},
        "metadata": {key: value for key, value in checkpoint.metadata.items() if key != "config"},
        "omissions": [dataclasses.asdict(problem) for problem in checkpoint.omissions()],
    }


def _file_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size


def _tensors(
    checkpoint: Checkpoint, listed: Iterable[str], found: Mapping[str, Statistics] | None
) -> list[dict[str, Any]]:
    rows = []
    for name in listed:
        spec = checkpoint.specs[checkpoint.canonical(name)]
        row: dict[str, Any] = {
            "name": name,
            "dtype": spec.dtype.value,
            "shape": list(spec.shape),
            "bytes": spec.nbytes,
            "tied_to": None if name == spec.name else spec.name,
        }
        if found is not None:
            row["stats"] = dataclasses.asdict(found[spec.name])
        rows.append(row)
    return rows


def _print_summary(about: dict[str, Any]) -> None:
    dtypes = ", ".join(f"{sums['tensors']} {dtype}" for dtype, sums in about["dtypes"].items())
    aliases = about["names"] - about["stored"]
    lines = {
        "format": f"{about['format']} ({about['reason']})",
        "file": byte_count(about["file_bytes"]),
        "tensors": f"{about['stored']}" + (f": {dtypes}" if dtypes else ""),
        "further names": str(aliases) if aliases else "",
        "parameters": f"{about['parameters']:,}",
        "tensor bytes": byte_count(about["tensor_bytes"]),
        "config": ", ".join(f"{key}={_value(value)}" for key, value in _items(about["config"])),
    }
    print(escape(about["path"]))
    for key, value in lines.items():
        if value:
            print(f"  {key:13} {escape(value)}")
    _print_section("ties", (f"{alias} = {name}" for alias, name in about["ties"].items()))
    _print_section("leaves", (f"{key}: {_value(leaf)}" for key, leaf in about["leaves"].items()))
    _print_section("metadata", (f"{key}: {_value(value)}" for key, value in about["metadata"].items()))
    omitted = (f"{each['where']}: {each['what']}".removeprefix(": ") for each in about["omissions"])
    _print_section("not shown: the file holds more than is read", omitted)


def _print_section(title: str, lines: Iterable[str]) -> None:
    for index, line in enumerate(lines):
        if index == 0:
            print(f"  {title}")
        print(f"    {escape(line)}")


def _print_tensors(tensors: list[dict[str, Any]], *, stats: bool) -> None:
    header = ["tensor", "dtype", "shape", "bytes"]
    header += ["min", "max", "mean", "NaN", "inf"] if stats else []
    rows = []
    for each in tensors:
        size = f"{each['bytes']:,}" if each["tied_to"] is None else "tied"
        row = [each["name"], each["dtype"], str(tuple(each["shape"])), size]
        row += [_number(value) for value in each["stats"].values()] if stats else []
        rows.append(row)
    print_table(header, rows, right=range(3, len(header)))


def _items(config: Any) -> Iterable[tuple[str, Any]]:
    return config.items() if isinstance(config, Mapping) else [("config", config)]


def _value(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def _number(value: float | int | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"
