"""What a table of an architecture is made of: rows, the columns of the layouts, and dimensions.

A dimension is a number, or a multiple of a named size: ``"n_embd"``, ``"3*n_embd"``. The named sizes
are inferred from the shapes of a checkpoint, so a table needs no configuration.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["ABSENT", "STORED", "TRIL", "Architecture", "Column", "Dim", "Row", "dim_value", "split_dim"]

Dim = int | str

TRIL = "tril(1)"
"""The value of a causal mask: ones on and below the diagonal of the last two dimensions, f32."""

_LAYER = re.compile(r"(?<=\.)(0|[1-9][0-9]{0,8})(?=\.)")


@dataclass(frozen=True, slots=True)
class Column:
    """What one layout does with a tensor: whether its programs store it."""

    stored: bool = True


STORED = Column()
ABSENT = Column(stored=False)


@dataclass(frozen=True)
class Row:
    """One canonical tensor: its name (``{l}`` stands for the layer) and its shape.

    ``equals`` is for a tensor whose value follows from elsewhere: `TRIL`, or the name of the row that
    it shares its value with. ``columns`` holds the layouts that do not simply store it.
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
    def shares(self) -> str | None:
        """The name of the row that this one shares its value with, if it is one of those."""
        return None if self.equals == TRIL else self.equals

    def column(self, layout: str) -> Column:
        """Return what ``layout`` does with this tensor."""
        return self.columns.get(layout, STORED)

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
    """A family of models: one table of rows in the order of the layers, for ``layouts``."""

    name: str
    title: str
    layouts: tuple[str, ...]
    rows: tuple[Row, ...]

    @functools.cached_property
    def by_name(self) -> Mapping[str, Row]:
        """The rows by name, ``{l}`` in place of the layer."""
        return {row.name: row for row in self.rows}

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
