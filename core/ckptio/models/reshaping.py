"""From a layout's tensors to the canonical ones and back: renamed, transposed, split, joined, reordered.

Nothing is read before it is asked for. What is only renamed, split or joined by rows keeps its spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckptio.adapters import View
from ckptio.checkpoint import CHUNK_BYTES, Checkpoint
from ckptio.errors import Problem
from ckptio.models.rotary import Rotary
from ckptio.models.tables import Architecture, Part, Row, dim_value
from ckptio.rows import Concatenated, Sliced
from ckptio.transforms import Cast, Transposed

__all__ = ["Widened", "f32_names", "from_canonical", "head_problems", "to_canonical"]


class Widened(Cast):
    """Some tensors in a wider dtype; of all others, the very iterators of the base are handed on."""

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        if name in self.cast_names:
            return super().chunks(name, max_bytes)
        return self.base.chunks(name, max_bytes)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor of a layout: of which canonical one it is which part."""

    name: str
    canonical: str
    row: Row
    part: Part
    alone: bool


def head_problems(
    table: Architecture,
    source: str | None,
    target: str,
    sizes: Mapping[str, int],
    config: Mapping[str, Any],
) -> list[Problem]:
    """Return why the rows of Q, K and V cannot be told apart, or those of their heads be ordered."""
    if "n_qkv" in sizes and sizes["n_embd"] + 2 * sizes.get("n_kv", 0) != sizes["n_qkv"]:
        what = f"{sizes['n_qkv']} rows are not n_embd {sizes['n_embd']} of Q and as many of K as of V"
        return [Problem("attn.c_attn.weight", what)]
    layouts = [layout for layout in (source, target) if layout is not None]
    rotary = any(each.rotary for row in table.rows for layout in layouts for each in row.parts(layout))
    if not rotary:
        return []
    if "n_head" not in config:
        what = "the rows of Q and K are ordered by head; pass --config n_head=…"
        return [Problem("config.n_head", what)]
    if type(config["n_head"]) is not int or config["n_head"] < 1:
        # What may be anything, nothing follows from; `config_problems` has named it.
        return []
    rows = sizes["n_embd"] // config["n_head"]
    if rows < 2 or rows % 2 or sizes["n_kv"] % rows:
        what = f"n_head {config['n_head']} makes heads of {rows} rows, but K has {sizes['n_kv']}"
        return [Problem("config.n_head", what)]
    return []


def to_canonical(
    checkpoint: Checkpoint,
    table: Architecture,
    layout: str,
    sizes: Mapping[str, int],
    config: Mapping[str, Any],
) -> Checkpoint:
    """Return the canonical tensors of a checkpoint that has all of ``layout``."""
    tensors = [each for each in _tensors(table, layout, sizes) if each.name in checkpoint]
    tied = {each.canonical: each.row for each in tensors if _is_tie(checkpoint, table, layout, each)}
    parts = {name: name for name in (each.name for each in tensors)}
    base: Checkpoint = View(checkpoint, {name: checkpoint.canonical(name) for name in parts})
    base = Rotary(base, _head_rows(tensors, sizes, config), to_halves=False)
    base = Transposed(base, [each.name for each in tensors if each.row.column(layout).transposed])
    whole: dict[str, list[str]] = {}
    for each in tensors:
        if not each.alone:
            whole.setdefault(each.canonical, []).append(each.name)
    # A joined tensor may have the name of none of its parts.
    base = Concatenated(base, whole)
    stored = {}
    present = {each.canonical for each in tensors}
    for each in tensors:
        shared = each.row.column(layout).tied_to
        if shared is not None and shared not in present:
            # The head alone is there, and is the embedding too.
            stored[shared] = each.name
        elif each.canonical not in tied:
            stored[each.canonical] = each.canonical if each.canonical in whole else each.name
    for row in table.rows:
        shared = row.column(layout).tied_to
        if shared is not None and row.name not in stored:
            tied[row.name] = row
    aliases = {name: row.column(layout).tied_to or "" for name, row in tied.items()}
    return View(base, stored, aliases)


def from_canonical(
    checkpoint: Checkpoint,
    table: Architecture,
    layout: str,
    sizes: Mapping[str, int],
    config: Mapping[str, Any],
) -> Checkpoint:
    """Return the tensors of ``layout`` of a checkpoint of canonical ones."""
    tensors = [each for each in _tensors(table, layout, sizes) if each.canonical in checkpoint]
    names = {each.canonical: each.name for each in tensors}
    stored, aliases, rows = {}, {}, {}
    start: dict[str, int] = {}
    for each in tensors:
        shared = each.row.column(layout).tied_to
        if shared is not None and checkpoint.canonical(each.canonical) == checkpoint.canonical(shared):
            aliases[each.name] = names[shared]
            continue
        stored[each.name] = checkpoint.canonical(each.canonical)
        if each.part.rows is not None:
            begin = start.get(each.canonical, 0)
            start[each.canonical] = begin + dim_value(each.part.rows, sizes)
            rows[each.name] = (begin, start[each.canonical])
    base: Checkpoint = View(checkpoint, stored, aliases)
    base = Sliced(base, rows)
    base = Rotary(base, _head_rows(tensors, sizes, config), to_halves=True)
    return Transposed(base, [each.name for each in tensors if each.row.column(layout).transposed])


def f32_names(table: Architecture, layout: str, sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield the names of the tensors that the programs of ``layout`` take as f32 alone."""
    return (each.name for each in _tensors(table, layout, sizes) if each.row.column(layout).f32)


def _tensors(table: Architecture, layout: str, sizes: Mapping[str, int]) -> Iterator[_Tensor]:
    """Yield every tensor that a model may have in ``layout``, layer by layer."""
    rows = [row for row in table.rows if row.column(layout).stored]
    first = next(index for index, row in enumerate(rows) if row.layered)
    layered = [row for row in rows if row.layered]
    order = [(row, 0) for row in rows[:first]]
    order += [(row, layer) for layer in range(sizes["n_layer"]) for row in layered]
    order += [(row, 0) for row in rows[first:] if not row.layered]
    for row, layer in order:
        parts = row.parts(layout)
        for each in parts:
            name = each.name.replace("{l}", str(layer))
            yield _Tensor(name, row.name_in(layer), row, each, len(parts) == 1)


def _is_tie(checkpoint: Checkpoint, table: Architecture, layout: str, tensor: _Tensor) -> bool:
    shared = tensor.row.column(layout).tied_to
    if shared is None:
        return False
    (other,) = table.by_name[shared].parts(layout)
    return other.name in checkpoint and (
        checkpoint.canonical(tensor.name) == checkpoint.canonical(other.name)
    )


def _head_rows(tensors: list[_Tensor], sizes: Mapping[str, int], config: Mapping[str, Any]) -> dict[str, int]:
    rotary = [each.name for each in tensors if each.part.rotary]
    return dict.fromkeys(rotary, sizes["n_embd"] // config["n_head"]) if rotary else {}
