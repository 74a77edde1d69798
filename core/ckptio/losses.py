"""Reading the losses out of training logs, and comparing those of two runs step by step.

Every line that has a step and its training loss counts, whatever stands before it (glog's prefix, say):

- ``step    1/100 | train loss 10.912345 | lr 1.00e-04 | (…)``: ours, InfiniTrain's, llm.c's train_gpt2.py;
- ``step    1/100 | loss 10.912345 (+0.00z)| norm …``: llm.c's train_gpt2.cu;
- ``step 0: train loss 10.912345 (took …)``: llm.c's train_gpt2.c;
- ``s:0 trl:10.9123``: the ``main.log`` of train_gpt2.py and train_gpt2.cu.

The last two count from 0 where the first two count from 1. Here the first step is 1 everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from ckptio.errors import OptionError

__all__ = [
    "TOLERANCES",
    "LossComparison",
    "LossDifference",
    "Losses",
    "compare_losses",
    "dtype_of",
    "log_names",
    "ranges",
    "read_losses",
]

TOLERANCES = {"float32": Decimal("1e-5"), "bfloat16": Decimal("1e-2")}
"""How far apart two losses may be, by the dtype that was trained in."""

Losses = Mapping[int, tuple[Decimal, ...]]
"""The losses by step, from 1 up, as they were printed. Where a log has a step more than once (the run was
restarted into the same file): the least and the greatest of its losses, and NaN if one of them is."""

_NUMBER = rb"([-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:e[-+]?\d{1,3})?|nan|inf))(?![\w.])"
_LOSS = re.compile(
    rb"\bstep\s+(\d{1,18})/\d+\s*\|\s*(?:train )?loss\s+" + _NUMBER,
    re.IGNORECASE,
)
_LOSS_FROM_0 = re.compile(
    rb"(?:\bstep\s+(?=\d+:\s*train)|^s:(?=\d+ trl))(\d{1,18})(?::\s*train loss\s+| trl:)" + _NUMBER,
    re.IGNORECASE,
)
_LONGEST_LINE = 1 << 16


def read_losses(path: Path) -> Losses:
    """Read the losses out of a log of any size, line by line; a line without one is passed over.

    Raises OSError.
    """
    losses: dict[int, tuple[Decimal, ...]] = {}
    with open(path, "rb") as file:
        for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
            # Some logs rewrite a line in place: several in one, between carriage returns.
            for part in line.split(b"\r"):
                found, first = _LOSS.search(part), 1
                if found is None:
                    found, first = _LOSS_FROM_0.search(part), 0
                if found is not None:
                    step = int(found[1]) + 1 - first
                    losses[step] = _extremes(*losses.get(step, ()), Decimal(found[2].decode()))
    return losses


def log_names(one: Path, other: Path) -> tuple[list[str], list[str], list[str]]:
    """Return which logs two directories have in common, and which only the first and only the second has.

    A directory's logs are the ``*.log`` files in it and below, each by its path in the directory.
    Raises OSError, and `OptionError` when only one of the two is a directory.
    """
    found = []
    for directory in (one, other):
        if not directory.is_dir():
            raise OptionError(f"{directory}: a directory of logs can only be compared with another")
        paths = (path for path in directory.rglob("*.log") if path.is_file())
        found.append({path.relative_to(directory).as_posix() for path in paths})
    return sorted(found[0] & found[1]), sorted(found[0] - found[1]), sorted(found[1] - found[0])


def dtype_of(*names: str) -> str:
    """Return the dtype that logs are of, by ``_bfloat16`` in the name of one of them; else float32."""
    return "bfloat16" if any("_bfloat16" in name for name in names) else "float32"


@dataclass(frozen=True, slots=True)
class LossDifference:
    """A step at which the losses are too far apart: infinitely, where one of them is NaN or infinite."""

    step: int
    one: Decimal
    other: Decimal
    distance: Decimal


@dataclass(frozen=True, slots=True)
class LossComparison:
    """What two logs have in common: the steps that both have, those that differ, those only one has.

    ``largest`` is the largest distance of two losses of one step, None where there are none.
    """

    common: tuple[int, ...]
    differing: tuple[LossDifference, ...]
    only_one: tuple[int, ...]
    only_other: tuple[int, ...]
    largest: Decimal | None

    @property
    def matched(self) -> int:
        """How many of the common steps match."""
        return len(self.common) - len(self.differing)

    def equal(self, *, strict: bool = False) -> bool:
        """Whether all common steps match, and there is one; ``strict`` wants every step in both."""
        alone = bool(self.only_one or self.only_other)
        return bool(self.common) and not self.differing and not (strict and alone)

    def summary(self) -> str:
        """Return the result in a line, such as ``60/60 common steps matched, steps 1-40 only in A``."""
        parts = ["no common step"]
        if self.common:
            parts = [f"{self.matched}/{len(self.common)} common steps matched"]
        for steps, where in ((self.only_one, "A"), (self.only_other, "B")):
            if steps:
                parts.append(f"{'step' if len(steps) == 1 else 'steps'} {ranges(steps)} only in {where}")
        return ", ".join(parts)


def compare_losses(one: Losses, other: Losses, tolerance: Decimal) -> LossComparison:
    """Compare the losses of two logs, step by step.

    Losses match when they are no further apart than ``tolerance``, in decimal arithmetic on what was
    printed. A NaN matches a NaN, and an infinity the same infinity: both runs came to the same. Where a
    log has several losses of a step, all of them must match.

    Raises `OptionError` for a tolerance that is no number from 0 up.
    """
    if not (tolerance.is_finite() and tolerance >= 0):
        raise OptionError(f"{tolerance} is no tolerance: a number from 0 up is expected")
    common = sorted(one.keys() & other.keys())
    worst = [_furthest(step, one[step], other[step]) for step in common]
    return LossComparison(
        tuple(common),
        tuple(each for each in worst if each.distance > tolerance),
        tuple(sorted(one.keys() - other.keys())),
        tuple(sorted(other.keys() - one.keys())),
        max((each.distance for each in worst), default=None),
    )


def ranges(steps: Iterable[int]) -> str:
    """Return ascending steps as text: ``1-40, 60``."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _extremes(*losses: Decimal) -> tuple[Decimal, ...]:
    """Return as few of the losses as say how far all of them are from any other."""
    if len(losses) == 1:
        return losses
    numbers = [loss for loss in losses if not loss.is_nan()]
    ends = {min(numbers), max(numbers)} if numbers else set()
    return (*sorted(ends), *[loss for loss in losses if loss.is_nan()][:1])


def _furthest(step: int, one: Iterable[Decimal], other: Iterable[Decimal]) -> LossDifference:
    pairs = (LossDifference(step, a, b, _distance(a, b)) for a in one for b in other)
    return max(pairs, key=lambda pair: pair.distance)


def _distance(one: Decimal, other: Decimal) -> Decimal:
    if one.is_finite() and other.is_finite():
        return abs(one - other)
    same = one == other or (one.is_nan() and other.is_nan())
    return Decimal(0 if same else "inf")
