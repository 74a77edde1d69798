"""Bring a checkpoint into the layout of a program, lazily, and account for what that changes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptio.adapters import Annotated, rename, select
from ckptio.checkpoint import Checkpoint, TensorSpec
from ckptio.dtypes import DType
from ckptio.errors import OptionError, Problem, UnsupportedError
from ckptio.models.config import config_problems, normalise_config
from ckptio.models.divisors import add_divisors, drop_divisors
from ckptio.models.matching import Matching, Recognised, lay_over
from ckptio.models.moves import Moved, chain, moves
from ckptio.models.recognition import architecture, embeddings, known_layouts, match
from ckptio.models.reshaping import Widened, f32_names, from_canonical, head_problems, to_canonical
from ckptio.models.rope_scaling import scaling_problems
from ckptio.models.tables import ROPE_DIVISORS, TRIL, Architecture, Row
from ckptio.models.values import difference, tril_chunks, tril_fault
from ckptio.transforms import Added

__all__ = ["LayoutResult", "apply_layout", "in_layout"]


@dataclass(frozen=True)
class LayoutResult:
    """A checkpoint in a layout, and what became of its tensors.

    ``derived`` are the names left out because their values follow from the architecture (checked), with
    the reason; ``tied`` maps each name that now shares the storage of another, which had equal bytes,
    to that one; ``added`` are the names that the source did not have, with the reason; ``moved`` says of
    the tensors that are stored otherwise in the two layouts what they have become; ``f32`` are the names
    that the programs of the layout take as f32 alone, and ``widened`` those of them that were narrower;
    ``implied`` maps the names that are left out because the layout takes them to be another to that one.
    When there are ``problems``, the checkpoint is not one of the layout; ``recognised`` is then what it is
    nearest to, with the sizes that most of its tensors have, or None. ``layout`` is the one that was wanted.
    """

    checkpoint: Checkpoint
    derived: dict[str, str] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    moved: dict[str, Moved] = field(default_factory=dict)
    f32: frozenset[str] = frozenset()
    widened: frozenset[str] = frozenset()
    implied: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    recognised: Recognised | None = None
    layout: str | None = None


def apply_layout(checkpoint: Checkpoint, layout: str, source_layout: str | None = None) -> LayoutResult:
    """Return ``checkpoint`` as the programs of ``layout`` name and store it.

    Its own layout is recognised by names and shapes, or is ``source_layout``. Headers and, where a tensor
    is to be left out, its values are read, a chunk at a time. Everything that stands in the way is in the
    result's ``problems``: no known architecture, each missing or unexpected tensor, each wrong shape, a
    mask that is not tril(1), a head that differs from the embedding it should be, hyperparameters that
    are needed and not in ``metadata["config"]``, several layouts that fit. Raises `OptionError` for an
    unknown layout.
    """
    for each in (layout, source_layout):
        if each is not None and each not in known_layouts():
            raise OptionError(f"unknown layout {each!r}; known: {', '.join(known_layouts())}")
    found = match(checkpoint, source_layout)
    result = LayoutResult(checkpoint, problems=found.problems(), recognised=found.recognised(), layout=layout)
    if not found.known:
        result.problems.extend(_prefix_problems(checkpoint))
        return result
    if layout not in found.architecture.layouts:
        own = ", ".join(found.architecture.layouts)
        what = f"a {found.architecture.title} model has no layout {layout!r}; it has {own}"
        result.problems.append(Problem("", what))
        return result
    wanted = layout if layout in found.architecture.prefixes else None
    if found.layout is None and wanted is None:
        return _arrange(found, checkpoint, layout, result)
    result = _reshape(found, checkpoint, layout, result)
    return result if result.problems else _finish(result, found.architecture, found.sizes)


def in_layout(checkpoint: Checkpoint, layout: str, config: Mapping[str, Any], *, source: str) -> Checkpoint:
    """Return the tensors of a model as ``layout`` has them, to be compared; nothing but tensors and ties.

    ``config`` has hyperparameters that the checkpoint does not say. Raises `UnsupportedError` that lists
    everything that stands in the way of ``source``.
    """
    known = {**normalise_config(checkpoint.metadata.get("config") or {}), **config}
    result = apply_layout(Annotated(checkpoint, metadata={"config": known}), layout)
    if result.problems:
        raise UnsupportedError(f"{source}: cannot be brought into the layout {layout!r}", result.problems)
    found = result.recognised
    # Where its column says so, a tied head need not be stored: it may be here, and there not, of one model.
    rows = architecture(found.architecture).rows if found is not None else ()
    tied = any(row.column(layout).tied_to is not None for row in rows)
    aliases = {} if tied else result.checkpoint.aliases
    return Annotated(result.checkpoint, aliases=aliases, metadata={}, leaves={})


def _prefix_problems(checkpoint: Checkpoint) -> list[Problem]:
    """Return what stands before the name of a known model's embedding, as that of a wrapper or of a key."""
    for embedding in embeddings():
        for name in checkpoint:
            prefix = name.removesuffix(embedding)
            if prefix not in ("", name):
                what = f"the names begin with {prefix!r}; pass --select '{prefix}*' --strip_prefix {prefix}"
                return [Problem("", what)]
    return []


def _arrange(found: Matching, checkpoint: Checkpoint, layout: str, result: LayoutResult) -> LayoutResult:
    """Make of canonical tensors those that ``layout`` stores."""
    wrong = {problem.where for problem in result.problems}
    for row in found.architecture.rows:
        if row.equals == TRIL and row.column(layout).stored:
            checkpoint = _add_masks(checkpoint, row, found, result)
        elif row.equals == TRIL:
            checkpoint = _drop_masks(checkpoint, row, found, wrong, result)
        elif row.equals == ROPE_DIVISORS and row.column(layout).stored:
            checkpoint = add_divisors(checkpoint, row.name, found.sizes, result.added, result.problems)
        elif row.shares is not None:
            checkpoint = _share(checkpoint, row, row.shares, layout, wrong, result)
    return dataclasses.replace(result, checkpoint=checkpoint)


def _reshape(found: Matching, checkpoint: Checkpoint, layout: str, result: LayoutResult) -> LayoutResult:
    """Go from one layout to another by way of the canonical tensors, when nothing stands in the way."""
    table, origin = found.architecture, checkpoint
    checkpoint, moved = found.checkpoint, found.renamed(origin)
    for row in found.table.rows if found.layout is not None else ():
        if row.equals == TRIL:
            checkpoint = _drop_masks(checkpoint, row, found, set(), result)
    config = normalise_config(checkpoint.metadata.get("config") or {})
    result.problems.extend(config_problems(config, found.sizes))
    if found.layout != layout:
        result.problems.extend(head_problems(table, found.layout, layout, found.sizes, config))
    if result.problems or found.layout == layout:
        return dataclasses.replace(result, checkpoint=checkpoint, moved=moved)
    for row in table.rows:
        if row.equals == ROPE_DIVISORS and found.layout is not None and row.column(found.layout).stored:
            checkpoint = drop_divisors(checkpoint, row.name, found.sizes, result.derived, result.problems)
    config = normalise_config(checkpoint.metadata.get("config") or {})
    result.problems.extend(scaling_problems(config, layout))
    if result.problems:
        return dataclasses.replace(result, checkpoint=checkpoint, moved=moved)
    wanted = layout if layout in table.prefixes else None
    moved = chain(moved, moves(table, found.layout, wanted, found.sizes["n_layer"], checkpoint.names()))
    if found.layout is not None:
        checkpoint = to_canonical(checkpoint, table, found.layout, found.sizes, config)
    result = _arrange(lay_over(table, checkpoint), checkpoint, layout, result)
    if not result.problems and wanted is not None:
        checkpoint = from_canonical(result.checkpoint, table, wanted, found.sizes, config)
        result = dataclasses.replace(result, checkpoint=checkpoint)
    return dataclasses.replace(result, moved=moved)


def _finish(result: LayoutResult, table: Architecture, sizes: Mapping[str, int]) -> LayoutResult:
    """Leave out implied ties, and widen, without a loss, what the programs of a layout take as f32 alone."""
    checkpoint, layout = result.checkpoint, result.layout or ""
    may_be = {part.name for row in table.rows if row.column(layout).implied for part in row.parts(layout)}
    implied = {alias: name for alias, name in checkpoint.aliases.items() if alias in may_be}
    if implied:
        kept = {alias: name for alias, name in checkpoint.aliases.items() if alias not in implied}
        checkpoint = Annotated(checkpoint, aliases=kept)
    names = frozenset(f32_names(table, layout, sizes)) & checkpoint.specs.keys()
    narrow = (DType.F16, DType.BF16)
    widened = frozenset(name for name in names if checkpoint.specs[name].dtype in narrow)
    if widened:
        checkpoint = Widened(checkpoint, DType.F32, widened)
    return dataclasses.replace(result, checkpoint=checkpoint, f32=names, widened=widened, implied=implied)


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
    if fault is not None and row.column(layout).tied_to is not None:
        return checkpoint
    if fault is not None:
        result.problems.append(
            Problem(name, f"differs from {wanted}, which the layout {layout!r} takes it to equal: {fault}")
        )
        return checkpoint
    if row.column(layout).stored and row.column(layout).tied_to is None:
        return checkpoint
    result.tied[name] = wanted
    return Annotated(checkpoint, aliases={**checkpoint.aliases, name: wanted})


def _unequal(checkpoint: Checkpoint, name: str, other: str) -> str | None:
    one, two = checkpoint.specs[checkpoint.canonical(name)], checkpoint.specs[checkpoint.canonical(other)]
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return f"{one.dtype.value} {one.shape} against {two.dtype.value} {two.shape}"
    return difference(checkpoint, one.name, two.name)
