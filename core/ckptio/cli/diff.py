"""``ckpt diff``: what differs between two checkpoints, by their values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptio.cli.options import FORMAT_FLAGS, Json, format_names, parse_pairs
from ckptio.cli.progress import ProgressBar
from ckptio.cli.text import escape, print_json, shortened

if TYPE_CHECKING:
    from ckptio.checkpoint import Checkpoint, TensorSpec
    from ckptio.comparison import Comparison, TensorDifference, ValueDifference
    from ckptio.distance import Distance

__all__ = ["as_dict", "compare_files", "diff", "print_comparison"]


def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="A checkpoint.", show_default=False)],
    other: Annotated[str, typer.Argument(metavar="B", help="Another, of any format.", show_default=False)],
    checkpoint_format: Annotated[
        str | None,
        typer.Option(
            *FORMAT_FLAGS,
            metavar="NAME",
            help="The format of both; without it, their contents decide.",
            autocompletion=format_names,
            show_default=False,
        ),
    ] = None,
    atol: Annotated[
        float | None, typer.Option(help="Absolute tolerance, from 0 up.", show_default=False)
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option(help="Tolerance relative to the larger magnitude, from 0 up.", show_default=False),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Bring both into the layout of this program first, and compare tensors and ties alone.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A hyperparameter that one of them does not know, for --layout (repeatable).",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Compare two checkpoints by their values.

    The exit status is 0 when they are equal, 1 when they differ, and 2 when that cannot be told.

    Without a tolerance, tensors are equal when dtype, shape and every bit are. With --atol or --rtol,
    elements are equal when |a - b| <= atol + rtol * max(|a|, |b|), a NaN equals a NaN, and a dtype
    that differs is shown but does not count.

    Ties, leaves and metadata count too. Metadata under the name of an installed format (llmc,
    msgpack, ...) is what a reader noted about its own container: it is shown but does not count, so
    that one model in two formats is equal. One model in two layouts is with --layout.

    Two step directories of training runs are compared file by file, and their trainer states too.
    """
    paths = Path(one), Path(other)
    if checkpoint_format is None and all(path.is_dir() for path in paths):
        from ckptio.cli.step_directory import diff_steps, is_step

        if all(map(is_step, paths)):
            if layout is not None:
                raise typer.BadParameter("it does not go with step directories", param_hint="--layout")
            return diff_steps(paths, atol=atol, rtol=rtol, as_json=as_json)
    prepare = _as_it_is if layout is None else _preparation(layout, parse_pairs(config, "--config"))
    found, formats = compare_files(
        paths, (checkpoint_format, checkpoint_format), atol=atol, rtol=rtol, prepare=prepare
    )
    if as_json:
        print_json(as_dict(found))
    else:
        print_comparison(found, (one, other), formats)
    return int(not found.equal)


def _as_it_is(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    return checkpoint


def compare_files(
    paths: tuple[Path, Path],
    checkpoint_formats: tuple[str | None, str | None],
    *,
    atol: float | None,
    rtol: float | None,
    prepare: Callable[[Checkpoint, Path], Checkpoint] = _as_it_is,
) -> tuple[Comparison, tuple[str, str]]:
    """Compare two checkpoint files, each ``prepare``d; return what was found, and the formats of the two."""
    from ckptio.comparison import compare
    from ckptio.detect import choose_reader
    from ckptio.reading import open_as
    from ckptio.registry import registry

    formats = registry()
    first_choice, second_choice = (
        choose_reader(path, name, formats) for path, name in zip(paths, checkpoint_formats, strict=True)
    )
    with (
        open_as(first_choice, paths[0]) as first,
        open_as(second_choice, paths[1]) as second,
        ProgressBar() as progress,
    ):
        found = compare(
            prepare(first, paths[0]),
            prepare(second, paths[1]),
            atol=atol,
            rtol=rtol,
            container_keys={info.name for info in formats.infos()},
            progress=progress,
        )
        first.check_unchanged()
        second.check_unchanged()
    return found, (first_choice.format.name, second_choice.format.name)


def _preparation(layout: str, config: Mapping[str, str]) -> Callable[[Checkpoint, Path], Checkpoint]:
    from ckptio.models import in_layout, parse_config_value

    given = {key: parse_config_value(key, value) for key, value in config.items()}
    return lambda checkpoint, path: in_layout(checkpoint, layout, given, source=str(path))


def print_comparison(found: Comparison, paths: tuple[str, str], formats: tuple[str, str]) -> None:
    """Print every difference on a line, and the verdict."""
    print(f"--- {escape(paths[0])} ({formats[0]})")
    print(f"+++ {escape(paths[1])} ({formats[1]})")
    for line in _lines(found):
        print(escape(line))


def _lines(found: Comparison) -> Iterator[str]:
    yield from (f"- {_described(spec)}" for spec in found.only_one)
    yield from (f"+ {_described(spec)}" for spec in found.only_other)
    yield from (f"~ {each.name}: {_change(each)}" for each in found.tensors)
    yield from (f"- tie {' = '.join(names)}" for names in found.ties_only_one)
    yield from (f"+ tie {' = '.join(names)}" for names in found.ties_only_other)
    yield from (_value_line("leaf", each) for each in found.leaves)
    yield from (_value_line("metadata", each) for each in found.metadata)
    yield from (
        f"  {_value_line('metadata', each)} (of the container; does not count)" for each in found.container
    )
    others = len(found.ties_only_one) + len(found.ties_only_other) + len(found.leaves) + len(found.metadata)
    verdict = "equal" if found.equal else "different"
    yield (
        f"{verdict}: tensors {found.same} equal, {sum(each.counts for each in found.tensors)} changed, "
        f"{len(found.only_one)} only in A, {len(found.only_other)} only in B; "
        f"{others} differences in ties, leaves and metadata"
    )


def _described(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype.value} {spec.shape}"


def _change(each: TensorDifference) -> str:
    parts = []
    if each.one.shape != each.other.shape:
        parts.append(f"shape {each.one.shape} -> {each.other.shape}")
    if each.one.dtype is not each.other.dtype:
        parts.append(f"dtype {each.one.dtype.value} -> {each.other.dtype.value}")
    if each.distance is not None:
        parts.append(_distance(each.distance))
    return ", ".join(parts) + ("" if each.counts else " (does not count)")


def _distance(distance: Distance) -> str:
    if not distance.differing:
        return "values equal"
    text = f"{distance.differing} of {distance.size} elements differ"
    if distance.nan < distance.differing:
        text += f", by {_number(distance.max_abs)} at most, relative {_number(distance.max_rel)}"
    return text + (f", {distance.nan} of them by a NaN" if distance.nan else "")


def _number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _value_line(kind: str, each: ValueDifference) -> str:
    if each.other is None:
        return f"- {kind} {each.key}: {shortened(each.one or '')}"
    if each.one is None:
        return f"+ {kind} {each.key}: {shortened(each.other)}"
    return f"~ {kind} {each.key}: {shortened(each.one)} -> {shortened(each.other)}"


def as_dict(found: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    return {
        "equal": found.equal,
        "tensors_equal": found.same,
        "only_in_a": [_spec(spec) for spec in found.only_one],
        "only_in_b": [_spec(spec) for spec in found.only_other],
        "changed": [
            {
                "name": each.name,
                "counts": each.counts,
                "a": _spec(each.one),
                "b": _spec(each.other),
                "distance": None if each.distance is None else dataclasses.asdict(each.distance),
            }
            for each in found.tensors
        ],
        "ties_only_in_a": found.ties_only_one,
        "ties_only_in_b": found.ties_only_other,
        "leaves": [_value(each) for each in found.leaves],
        "metadata": [_value(each) for each in found.metadata],
        "container_metadata": [_value(each) for each in found.container],
    }


def _spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype.value, "shape": list(spec.shape)}


def _value(each: ValueDifference) -> dict[str, Any]:
    """Return the key with its value on the sides that have it."""
    sides = {"a": each.one, "b": each.other}
    return {"key": each.key} | {side: json.loads(text) for side, text in sides.items() if text is not None}
