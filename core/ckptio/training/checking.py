"""Before step 1: whether a format will hold the model, told by its real tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ckptio.checkpoint import Checkpoint
from ckptio.errors import CkptError, Problem, UnsupportedError
from ckptio.format import Format, parse_options
from ckptio.models import apply_layout
from ckptio.registry import registry
from ckptio.training.writing import Part

__all__ = ["check_parts"]


def check_parts(parts: list[Part]) -> None:
    """Raise `UnsupportedError` with everything that the formats of ``parts`` cannot hold, and which could.

    Ties go by storage here: two separate tensors that are equal now will not be after a step, so a format
    that stores one of them is refused.
    """
    found = {part.name: part_problems(part.checkpoint, part.format, part.options) for part in parts}
    problems = [
        dataclasses.replace(problem, where=f"{name}: {problem.where}" if problem.where else name, allow=None)
        for name, its_problems in found.items()
        for problem in its_problems
    ]
    if not problems:
        return
    first = next(part for part in parts if found[part.name])
    others = _that_hold([part.checkpoint for part in parts if found[part.name]])
    advice = f"; these would do: --checkpoint_format {', '.join(others)}" if others else ""
    raise UnsupportedError(
        f"checkpoint_format {first.format.name!r} cannot hold this training, so it is not begun{advice}",
        problems,
    )


def part_problems(checkpoint: Checkpoint, chosen: Format, options: Mapping[str, Any]) -> list[Problem]:
    """Return what stands against holding ``checkpoint``, whose tensors go on being trained."""
    parsed = parse_options(
        chosen.write_options, options, owner=f"the format {chosen.name!r}", flag="--format_option"
    )
    problems: list[Problem] = []
    if chosen.capabilities.layout is not None:
        result = apply_layout(checkpoint, chosen.capabilities.layout)
        problems += result.problems
        problems += [
            Problem(
                name,
                f"equal to {other} now, but a tensor of its own: {chosen.name} stores one of the two, and "
                "training makes them differ; tie them (one storage) or take another format",
            )
            for name, other in result.tied.items()
        ]
        checkpoint = result.checkpoint
    problems += chosen.check(checkpoint, parsed)
    return list(dict.fromkeys(problems))


def _that_hold(checkpoints: list[Checkpoint]) -> list[str]:
    """Return the installed formats that would hold all of these."""
    names = []
    for name in registry().names():
        try:
            other = registry().require(name)
            writes = other.capabilities.writes and other.capabilities.holds != "model"
            if writes and not any(part_problems(each, other, {}) for each in checkpoints):
                names.append(name)
        except CkptError:
            continue
    return names
