"""A checkpoint laid over the table of an architecture: what fits, what is missing, what does not belong."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ckptio.adapters import rename
from ckptio.checkpoint import Checkpoint
from ckptio.errors import Problem
from ckptio.models.moves import Moved
from ckptio.models.tables import Architecture, Row, split_dim

__all__ = ["Matching", "Recognised", "canonical_layouts", "lay_over"]

_LISTED = 20
_BUFFERS = (".attn.masked_bias", ".rotary_emb.inv_freq")
"""Buffers that transformers of before 2023 stored: what masks attention, and the rotary frequencies."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """The architecture of a checkpoint, the layouts that its names fit, and its sizes.

    ``sizes`` has ``n_layer``, ``n_embd``, ``vocab_size``; for GPT-2 ``block_size``; for LLaMA-3 and Qwen2
    ``n_qkv`` (rows of Q, K and V) and ``n_ffn`` (width of the MLP).
    """

    architecture: str
    layouts: tuple[str, ...]
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Matching:
    """A checkpoint laid over the table of its nearest architecture, as a layout has it.

    ``layout`` is None for the canonical table. ``checkpoint`` has the names of the table. Of the ``absent``
    tensors, ``missing`` has the names: all where they are fewer than those that fit, else the first.
    """

    checkpoint: Checkpoint
    architecture: Architecture
    layout: str | None
    rows: Mapping[str, Row]
    sizes: Mapping[str, int]
    absent: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    rivals: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """True when more of the names fit than are missing or do not belong."""
        return len(self.rows) > self.absent + len(self.unexpected)

    @property
    def table(self) -> Architecture:
        """The table that the names were looked up in."""
        return self.architecture.in_layout(self.layout)

    @property
    def distance(self) -> tuple[int, int]:
        """How far the checkpoint is from this table: by its names, then by the shapes."""
        return (
            self.absent + len(self.unexpected) - len(self.rows),
            sum(1 for _ in self._wrong_shapes()),
        )

    def problems(self) -> list[Problem]:
        """Return everything in which the checkpoint is not a model of this architecture."""
        title = self.architecture.title
        if not self.known:
            wanted = _some(self.missing, self.absent)
            what = f"not a known architecture; the nearest, {title}, would need {wanted}"
            if self.unexpected:
                what += f", and has no {_some(self.unexpected, len(self.unexpected))}"
            return [Problem("", what)]
        if self.rivals:
            what = f"the tensors fit several layouts ({', '.join(self.rivals)}); pass --source_layout NAME"
            return [Problem("", what)]
        return [
            *(Problem(name, f"missing: {self._why_needed(name)}") for name in self.missing),
            *(Problem(name, f"unexpected: {self._why_not(name)}") for name in self.unexpected),
            *self._wrong_shapes(),
        ]

    def _why_needed(self, name: str) -> str:
        row = self.table.by_name.get(name)
        if row is not None and row.shares is not None:
            return f"the config says that it is not {row.shares} (tie_word_embeddings: false)"
        return f"every {self.architecture.title} model has this tensor"

    def _why_not(self, name: str) -> str:
        buffer = next((each for each in _BUFFERS if name.endswith(each)), None)
        if buffer is not None:
            return f"older programs store this buffer, and all make it anew; --drop '*{buffer}' leaves it out"
        return f"a {self.architecture.title} model has no such tensor"

    def renamed(self, origin: Checkpoint) -> dict[str, Moved]:
        """Return what became of the names of ``origin`` that are otherwise in the table."""
        pairs = zip(origin.names(), self.checkpoint.names(), strict=True)
        return {old: Moved((new,), ("renamed",)) for old, new in pairs if old != new}

    def recognised(self) -> Recognised | None:
        """Return what is known, or None when not every size of the architecture is."""
        rows = self.table.rows
        dims = [dim for row in rows if not row.computed for dim in row.shape]
        needed = {size for _, size in map(split_dim, dims) if size is not None}
        if not self.known or needed - self.sizes.keys():
            return None
        optional = self._names_of(row for row in rows if row.shares or (self.layout and row.equals))
        layouts = []
        for layout in (self.layout,) if self.layout else canonical_layouts(self.architecture):
            stored = self._names_of(row for row in rows if row.column(layout).stored)
            required = stored - optional if self.layout else stored
            if required <= self.rows.keys() <= stored | optional:
                layouts.append(layout)
        sizes = {size: count for size, count in self.sizes.items() if size not in ("n_kv", "n_freq")}
        return Recognised(self.architecture.name, tuple(layouts), sizes)

    def _names_of(self, rows: Iterable[Row]) -> set[str]:
        return {name for row in rows for name in row.names(self.sizes["n_layer"])}

    def _wrong_shapes(self) -> Iterator[Problem]:
        for name, row in self.rows.items():
            found = self.checkpoint.specs[self.checkpoint.canonical(name)].shape
            shape = tuple(
                factor if size is None else factor * self.sizes.get(size, 0)
                for factor, size in map(split_dim, row.shape)
            )
            if found != shape:
                yield Problem(name, f"shape {found} found, {shape} expected by the other tensors")


def lay_over(architecture: Architecture, checkpoint: Checkpoint, layout: str | None = None) -> Matching:
    """Lay a checkpoint over the table of an architecture in a layout, or of its canonical tensors."""
    table = architecture.in_layout(layout)
    checkpoint = _with_prefix(checkpoint, table, architecture.prefixes.get(layout or "", ""))
    names = checkpoint.names()
    rows: dict[str, Row] = {}
    unexpected = []
    layers: set[int] = set()
    for name in names:
        located = table.locate(name)
        # A layer that the other names could not lead up to would make up missing tensors without end.
        if located is None or located[1] >= len(names):
            unexpected.append(name)
            continue
        row, layer = located
        rows[name] = row
        if row.layered:
            layers.add(layer)
    n_layer = max(layers, default=0) + 1
    config = checkpoint.metadata.get("config")
    tied = config.get("tie_word_embeddings") if isinstance(config, Mapping) else None
    optional = architecture.optional(layout, rows.keys(), tied)
    needed = [row for row in table.rows if row.name not in optional]
    present = Counter(row.name for row in rows.values())
    absent = sum(row.count(n_layer) - present[row.name] for row in needed)
    # Many layers of one row alone would make up many times as many names.
    listed = None if absent < len(rows) else _LISTED
    absentees = (name for row in needed for name in row.names(n_layer) if name not in rows)
    missing = tuple(itertools.islice(absentees, listed))
    sizes = {"n_layer": n_layer, **_infer_sizes(checkpoint, rows)}
    return Matching(checkpoint, architecture, layout, rows, sizes, absent, missing, tuple(unexpected))


def canonical_layouts(architecture: Architecture) -> tuple[str, ...]:
    """Return the layouts that have the canonical names."""
    return tuple(layout for layout in architecture.layouts if layout not in architecture.prefixes)


def _with_prefix(checkpoint: Checkpoint, table: Architecture, prefix: str) -> Checkpoint:
    """Give the names the prefix of a layout where none of them has it, as that of a model without a head."""
    names = checkpoint.names()
    if not prefix or any(name.startswith(prefix) for name in names):
        return checkpoint
    bare = [name for name in names if table.locate(prefix + name) is not None]
    return rename(checkpoint, {name: prefix + name for name in bare}) if bare else checkpoint


def _infer_sizes(checkpoint: Checkpoint, rows: Mapping[str, Row]) -> dict[str, int]:
    """Return each named size as most of the tensors have it, so that one wrong shape shows as one."""
    votes: dict[str, Counter[int]] = {}
    for name, row in rows.items():
        shape = checkpoint.specs[checkpoint.canonical(name)].shape
        if len(shape) != len(row.shape):
            continue
        for found, (factor, size) in zip(shape, map(split_dim, row.shape), strict=True):
            if size is not None and found % factor == 0:
                votes.setdefault(size, Counter())[found // factor] += 1
    sizes = {size: counter.most_common(1)[0][0] for size, counter in votes.items()}
    n_embd = sizes.get("n_embd", 0)
    if "n_kv" in sizes:
        sizes["n_qkv"] = n_embd + 2 * sizes["n_kv"]
    elif sizes.get("n_qkv", 0) > n_embd:
        sizes["n_kv"] = (sizes["n_qkv"] - n_embd) // 2
    return sizes


def _some(names: tuple[str, ...], count: int) -> str:
    listed = ", ".join(names[:_LISTED])
    return f"{listed} and {count - _LISTED} more" if count > _LISTED else listed
