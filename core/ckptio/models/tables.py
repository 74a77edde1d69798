"""What a table of an architecture is made of: rows, the columns of the layouts, and dimensions.

A dimension is a number, or a multiple of a named size: ``"n_embd"``, ``"3*n_embd"``. The named sizes
are inferred from the shapes of a checkpoint, so a table needs no configuration.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = [
    "ABSENT",
    "ROPE_DIVISORS",
    "STORED",
    "TRIL",
    "Architecture",
    "Column",
    "Dim",
    "Part",
    "Row",
    "dim_value",
    "implied_tie",
    "part",
    "split_dim",
]

Dim = int | str

TRIL = "tril(1)"
"""The value of a causal mask: ones on and below the diagonal of the last two dimensions, f32."""

ROPE_DIVISORS = "rope divisors"
"""What llama.cpp divides the rotary frequencies by: ``ckptio.models.rope_scaling`` makes it, as f32."""

_LAYER = re.compile(r"(?<=\.)(0|[1-9][0-9]{0,8})(?=\.)")


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor that a layout makes of a canonical one, or of ``rows`` of it.

    In a ``rotary`` one, the rows of each head are in halves, where the canonical tensor has pairs.
    """

    name: str
    rows: Dim | None = None
    rotary: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """What one layout does with a tensor: whether its programs store it, and in what ``parts``.

    Without parts it has its canonical name; with several, they are its rows, from the first to the last.
    ``transposed`` says that rows and columns are exchanged. A tensor that is ``tied_to`` another row is
    stored only where it is a matrix of its own; where it is not stored, it is that one, and with ``implied``
    nothing in a file says so. The programs of a layout can only compute with it as f32 where it is ``f32``.
    """

    stored: bool = True
    parts: tuple[Part, ...] = ()
    transposed: bool = False
    tied_to: str | None = None
    implied: bool = False
    f32: bool = False


def part(name: str, *, transposed: bool = False, tied_to: str | None = None, f32: bool = False) -> Column:
    """Return the column of a layout that stores a tensor whole, under another name."""
    return Column(parts=(Part(name),), transposed=transposed, tied_to=tied_to, f32=f32)


def implied_tie(name: str, tied_to: str) -> Column:
    """Return the column of a layout that stores a tensor, unless it is that of the row ``tied_to``."""
    return Column(parts=(Part(name),), tied_to=tied_to, implied=True)


STORED = Column()
ABSENT = Column(stored=False)


@dataclass(frozen=True)
class Row:
    """One canonical tensor: its name (``{l}`` stands for the layer) and its shape.

    ``equals`` is for a tensor whose value follows from elsewhere: `TRIL`, `ROPE_DIVISORS`, or the name of
    the row that it shares its value with. ``columns`` holds the layouts that do not simply store it.
    """

    name: str
    shape: tuple[Dim, ...]
    equals: str | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)

    @property
    def layered(self) -> bool:
        """True when every layer has such a tensor."""
        return "{l}" in self.name

    @property
    def computed(self) -> bool:
        """True when the value follows from the hyperparameters: no model needs to have the tensor."""
        return self.equals in (TRIL, ROPE_DIVISORS)

    @property
    def shares(self) -> str | None:
        """The name of the row that this one shares its value with, if it is one of those."""
        return None if self.computed else self.equals

    def column(self, layout: str) -> Column:
        """Return what ``layout`` does with this tensor."""
        return self.columns.get(layout, STORED)

    def parts(self, layout: str) -> tuple[Part, ...]:
        """Return the tensors that ``layout`` makes of this one, where it stores it."""
        return self.column(layout).parts or (Part(self.name),)

    def name_in(self, layer: int) -> str:
        """Return the name in one layer."""
        return self.name.replace("{l}", str(layer))

    def count(self, n_layer: int) -> int:
        """Return how many such tensors a model of ``n_layer`` layers has."""
        return n_layer if self.layered else 1

    def names(self, n_layer: int) -> Iterator[str]:
        """Yield the name in every layer, or the one name."""
        return (self.name_in(layer) for layer in range(self.count(n_layer)))

    def shape_for(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape for known sizes; KeyError when one is unknown."""
        return tuple(dim_value(dim, sizes) for dim in self.shape)

    def size_for(self, sizes: Mapping[str, int]) -> int:
        """Return the number of elements for known sizes."""
        return math.prod(self.shape_for(sizes))


@dataclass(frozen=True)
class Architecture:
    """A family of models: one table of rows in the order of the layers, for ``layouts``.

    The layouts with a ``prefix`` have names and shapes of their own, those of ``in_layout``; their
    programs also write the names without it. All others have the canonical ones.
    """

    name: str
    title: str
    layouts: tuple[str, ...]
    rows: tuple[Row, ...]
    prefixes: Mapping[str, str] = field(default_factory=dict)

    def in_layout(self, layout: str | None) -> Architecture:
        """Return the table of the tensors as ``layout`` has them; of the canonical ones for None."""
        return self if layout not in self.prefixes else self._tables[layout]

    @functools.cached_property
    def _tables(self) -> Mapping[str | None, Architecture]:
        return {
            layout: Architecture(
                self.name,
                self.title,
                (layout,),
                tuple(each for row in self.rows for each in self._rows_in(row, layout)),
            )
            for layout in self.prefixes
        }

    def _rows_in(self, row: Row, layout: str) -> Iterator[Row]:
        column = row.column(layout)
        equals = column.tied_to or row.equals
        if equals is not None and equals in self.by_name:
            (only,) = self.by_name[equals].parts(layout)
            equals = only.name
        for each in row.parts(layout):
            shape = row.shape if each.rows is None else (each.rows, *row.shape[1:])
            yield Row(each.name, shape[::-1] if column.transposed else shape, equals)

    @functools.cached_property
    def by_name(self) -> Mapping[str, Row]:
        """The rows by name, ``{l}`` in place of the layer."""
        return {row.name: row for row in self.rows}

    def optional(self, layout: str | None, names: Collection[str], tied: object) -> set[str]:
        """Return the rows that a model in ``layout`` with these ``names`` is whole without.

        They are those whose values follow, and one of head and embedding: the embedding only where all
        such models have one matrix for both, or where this is ``tied``, as its config says; the head
        unless that says False.
        """
        always = any(row.shares for row in self.rows)
        found = set()
        for row in self.in_layout(layout).rows:
            if row.equals is not None and (row.shares is None or tied is not False):
                found.add(row.name)
            if row.shares is not None and row.name in names and tied is not False and (always or tied):
                found.add(row.shares)
        return found

    def locate(self, name: str) -> tuple[Row, int] | None:
        """Return the row and the layer (0 where there are none) of a tensor's name, or None."""
        row = self.by_name.get(name)
        if row is not None:
            return None if row.layered else (row, 0)
        found = _LAYER.search(name)
        if found is None:
            return None
        row = self.by_name.get(f"{name[: found.start()]}{{l}}{name[found.end() :]}")
        return (row, int(found[0])) if row is not None else None


@functools.cache
def split_dim(dim: Dim) -> tuple[int, str | None]:
    """Return the factor and the size of a dimension: ``"3*n_embd"`` is 3 and ``"n_embd"``."""
    if isinstance(dim, int):
        return dim, None
    factor, star, size = dim.rpartition("*")
    return (int(factor) if star else 1), size


def dim_value(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return a dimension for known sizes."""
    factor, size = split_dim(dim)
    return factor if size is None else factor * sizes[size]
