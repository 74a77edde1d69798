"""Bring a checkpoint into the layout of a program, lazily, and account for what that changes."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field

from ckptio.adapters import Annotated, rename, select
from ckptio.checkpoint import Checkpoint, TensorSpec
from ckptio.dtypes import DType
from ckptio.errors import OptionError, Problem
from ckptio.models.matching import Matching, Recognised, known_layouts, match
from ckptio.models.tables import TRIL, Row
from ckptio.models.values import difference, tril_chunks, tril_fault
from ckptio.transforms import Added

__all__ = ["LayoutResult", "apply_layout"]


@dataclass(frozen=True)
class LayoutResult:
    """A checkpoint in a layout, and what became of its tensors.

    ``derived`` are the names left out because their values follow from the architecture (checked), with
    the reason; ``tied`` maps each name that now shares the storage of another, which had equal bytes,
    to that one; ``added`` are the names that the source did not have, with the reason. When there are
    ``problems``, the checkpoint is not one of the layout; ``recognised`` is then what it is nearest to,
    with the sizes that most of its tensors have, or None.
    """

    checkpoint: Checkpoint
    derived: dict[str, str] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    recognised: Recognised | None = None


def apply_layout(checkpoint: Checkpoint, layout: str) -> LayoutResult:
    """Return ``checkpoint`` as the programs of ``layout`` name and store it.

    Headers and, where a tensor is to be left out, its values are read, a chunk at a time. Everything
    that stands in the way is in the result's ``problems``: no known architecture, each missing or
    unexpected tensor, each wrong shape, a mask that is not tril(1), a head that differs from the
    embedding it should be. Raises `OptionError` for an unknown layout.
    """
    if layout not in known_layouts():
        raise OptionError(f"unknown layout {layout!r}; known: {', '.join(known_layouts())}")
    found = match(checkpoint)
    result = LayoutResult(checkpoint, problems=found.problems(checkpoint), recognised=found.recognised())
    if not found.known:
        return result
    wrong = {problem.where for problem in result.problems}
    for row in found.architecture.rows:
        if row.equals == TRIL and row.column(layout).stored:
            checkpoint = _add_masks(checkpoint, row, found, result)
        elif row.equals == TRIL:
            checkpoint = _drop_masks(checkpoint, row, found, wrong, result)
        elif row.shares is not None:
            checkpoint = _share(checkpoint, row, row.shares, layout, wrong, result)
    return dataclasses.replace(result, checkpoint=checkpoint)


def _add_masks(checkpoint: Checkpoint, row: Row, found: Matching, result: LayoutResult) -> Checkpoint:
    absent = [name for name in row.names(found.sizes["n_layer"]) if name not in checkpoint]
    size = found.sizes.get("block_size")
    if not absent or size is None:
        return checkpoint
    result.added.update(dict.fromkeys(absent, f"made as {TRIL}"))
    make = functools.partial(tril_chunks, size, DType.F32)
    specs = {name: TensorSpec(name, DType.F32, row.shape_for(found.sizes)) for name in absent}
    return Added(checkpoint, {name: (spec, make) for name, spec in specs.items()})


def _drop_masks(
    checkpoint: Checkpoint, row: Row, found: Matching, wrong: set[str], result: LayoutResult
) -> Checkpoint:
    masks = [name for name, its_row in found.rows.items() if its_row is row]
    faults: dict[str, str | None] = {}
    for name in masks:
        stored = checkpoint.canonical(name)
        if name in wrong:
            continue
        if stored not in faults:
            faults[stored] = tril_fault(checkpoint, stored)
        fault = faults[stored]
        if fault is None:
            result.derived[name] = f"equal to {TRIL}, which the architecture implies"
        else:
            result.problems.append(Problem(name, fault))
    dropped = result.derived.keys()
    return select(checkpoint, [name for name in checkpoint if name not in dropped]) if dropped else checkpoint


def _share(
    checkpoint: Checkpoint, row: Row, wanted: str, layout: str, wrong: set[str], result: LayoutResult
) -> Checkpoint:
    """Make ``row`` and the row ``wanted`` one value: tied where the layout stores it once."""
    name = row.name
    if name not in checkpoint and wanted not in checkpoint:
        return checkpoint
    if name not in checkpoint:
        result.added[name] = f"shares the storage of {wanted}, as the architecture says"
        return Annotated(checkpoint, aliases={**checkpoint.aliases, name: wanted})
    if wanted not in checkpoint:
        checkpoint = rename(checkpoint, {name: wanted})
        return Annotated(checkpoint, aliases={**checkpoint.aliases, name: wanted})
    if checkpoint.canonical(name) == checkpoint.canonical(wanted):
        swapped = wanted in checkpoint.aliases
        return rename(checkpoint, {name: wanted, wanted: name}) if swapped else checkpoint
    if wrong & {name, wanted}:
        return checkpoint
    fault = _unequal(checkpoint, name, wanted)
    if fault is not None:
        result.problems.append(
            Problem(name, f"differs from {wanted}, which the layout {layout!r} takes it to equal: {fault}")
        )
        return checkpoint
    if row.column(layout).stored:
        return checkpoint
    result.tied[name] = wanted
    return Annotated(checkpoint, aliases={**checkpoint.aliases, name: wanted})


def _unequal(checkpoint: Checkpoint, name: str, other: str) -> str | None:
    one, two = checkpoint.specs[checkpoint.canonical(name)], checkpoint.specs[checkpoint.canonical(other)]
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return f"{one.dtype.value} {one.shape} against {two.dtype.value} {two.shape}"
    return difference(checkpoint, one.name, two.name)
