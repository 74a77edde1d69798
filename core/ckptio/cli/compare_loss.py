"""``ckpt compare-loss``: whether two training runs had the same losses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ckptio.cli.options import Json
from ckptio.cli.text import escape, print_json

if TYPE_CHECKING:
    from decimal import Decimal

    from ckptio.losses import LossComparison, Losses

__all__ = ["compare_loss"]


def compare_loss(
    one: Annotated[
        str, typer.Argument(metavar="A", help="A log, or a directory of them.", show_default=False)
    ],
    other: Annotated[str, typer.Argument(metavar="B", help="Another.", show_default=False)],
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="float32|bfloat16",
            help="What was trained in, for the tolerance: 1e-5 or 1e-2; without it, float32, or bfloat16 "
            "where a name has _bfloat16 in it.",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER", help="How far apart two losses may be, in place of that.", show_default=False
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Both must have all steps, and all logs.")] = False,
    as_json: Json = False,
) -> int:
    """Compare the losses of two training logs, step by step.

    The exit status is 0 when they match, 1 when they do not, and 2 when that cannot be told.

    A run that was resumed has fewer steps: the steps that both have must match, and there must be one.
    Of two directories, the logs (*.log) of the same name are compared, but for those without any loss.

    The lines of our examples, of InfiniTrain and of llm.c are recognised. Where llm.c counts steps from
    0 (train_gpt2.c, main.log), they are counted from 1 as everywhere else. A NaN matches a NaN.
    """
    paths = Path(one), Path(other)
    if any(path.is_dir() for path in paths):
        from ckptio.losses import log_names

        common, *alone = log_names(*paths)
    else:
        common, alone = [""], [[], []]
    compared = [_compared(paths[0] / name, paths[1] / name, dtype, tolerance, strict) for name in common]
    # Beside the logs of runs there are those of builds: in a directory they are none of our business.
    silent = [each for each in compared if common != [""] and not each["a"]["steps"] + each["b"]["steps"]]
    compared = [each for each in compared if each not in silent]
    matched = bool(compared) and all(each["matched"] for each in compared) and not (strict and any(alone))
    about = {
        "matched": matched,
        "logs": compared,
        "only_in_a": alone[0],
        "only_in_b": alone[1],
        "without_losses": [each["a"]["path"] for each in silent],
    }
    if as_json:
        print_json(about)
    else:
        _print(about)
    return int(not matched)


def _compared(
    one: Path, other: Path, dtype: str | None, tolerance: str | None, strict: bool
) -> dict[str, Any]:
    from ckptio.losses import compare_losses, dtype_of, read_losses

    found_dtype = dtype or dtype_of(one.name, other.name)
    limit = _tolerance(found_dtype, tolerance)
    losses = read_losses(one), read_losses(other)
    found = compare_losses(*losses, limit)
    return {
        "a": _log(one, losses[0]),
        "b": _log(other, losses[1]),
        "matched": found.equal(strict=strict),
        "summary": found.summary(),
        "tolerance": float(limit),
        "dtype": found_dtype if tolerance is None else None,
        "largest_difference": None if found.largest is None else float(found.largest),
        "common_steps": len(found.common),
        "matched_steps": found.matched,
        "only_in_a": found.only_one,
        "only_in_b": found.only_other,
        "differing": _differing(found),
    }


def _tolerance(dtype: str, tolerance: str | None) -> Decimal:
    from decimal import Decimal, InvalidOperation

    from ckptio.losses import TOLERANCES

    if dtype not in TOLERANCES:
        raise typer.BadParameter(f"{dtype!r} is none of {', '.join(TOLERANCES)}", param_hint="--dtype")
    if tolerance is None:
        return TOLERANCES[dtype]
    try:
        return Decimal(tolerance)
    except InvalidOperation:
        raise typer.BadParameter(f"{tolerance!r} is no number", param_hint="--tolerance") from None


def _log(path: Path, losses: Losses) -> dict[str, Any]:
    from ckptio.losses import ranges

    return {"path": str(path), "steps": len(losses), "ranges": ranges(sorted(losses))}


def _differing(found: LossComparison) -> list[dict[str, Any]]:
    return [
        {key: value if key == "step" else float(value) for key, value in dataclasses.asdict(each).items()}
        for each in found.differing
    ]


def _print(about: dict[str, Any]) -> None:
    for log in about["logs"]:
        for mark, side in (("---", log["a"]), ("+++", log["b"])):
            steps = f"{side['steps']} steps: {side['ranges']}" if side["steps"] else "no line with a loss"
            print(escape(f"{mark} {side['path']} ({steps})"))
        for each in log["differing"]:
            print(
                f"~ step {each['step']}: {each['one']:.6f} -> {each['other']:.6f}, by {each['distance']:.3g}"
            )
        print(f"{log['summary']}; {_measure(log)}")
    for side in ("a", "b"):
        for name in about[f"only_in_{side}"]:
            print(escape(f"{name}: only in {side.upper()}"))
    for path in about["without_losses"]:
        print(escape(f"{path}: no line with a loss, nor in the other; passed over"))
    if not about["logs"]:
        print("different: there is no log (*.log) of one name in both that has losses")
    elif len(about["logs"]) > 1:
        good = sum(log["matched"] for log in about["logs"])
        print(f"{good}/{len(about['logs'])} logs matched")


def _measure(log: dict[str, Any]) -> str:
    tolerance = f"tolerance {log['tolerance']:g}" + (f" ({log['dtype']})" if log["dtype"] else "")
    if log["largest_difference"] is None:
        return tolerance
    return f"largest difference {log['largest_difference']:g}, {tolerance}"
