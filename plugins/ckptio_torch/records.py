"""What a pickle of torch comes to here: plain values, and the inert records that stand for the rest.

None, bool, int, float, complex, str, bytes, list and tuple stand for themselves. Nothing else of
Python's is ever built, so nothing that a pickle says can run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ckptio import DType

__all__ = ["Global", "Map", "Storage", "StorageType", "Tagged", "Tensor", "Unknown", "kind_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Global:
    """A class or function on the list, by its full name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class StorageType:
    """A class of storages; ``dtype`` is None where the elements are bytes of any type (UntypedStorage)."""

    name: str
    dtype: DType | None


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """A storage: ``nbytes`` bytes from byte ``start`` of what the file keeps under ``key``.

    ``root_nbytes`` is the size of all that is kept there.
    """

    key: str
    dtype: DType | None
    start: int
    nbytes: int
    root_nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A view of a storage: ``offset`` and ``strides`` count elements.

    ``parameter`` tells a torch.nn.Parameter, ``stripped`` that it had attributes which are left out.
    """

    storage: Storage
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False
    parameter: bool = False
    stripped: bool = False


@dataclass(slots=True, eq=False)
class Map:
    """A dict: keys and values in turn, and the attributes that an OrderedDict may have.

    ``kind`` is None, ``OrderedDict`` or ``Counter``.
    """

    kind: str | None = None
    items: list[Any] = field(default_factory=list)
    attributes: Map | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tagged:
    """A plain value of a type that has no other record: ``kind`` is the name of that type."""

    kind: str
    value: Any


@dataclass(slots=True, eq=False)
class Unknown:
    """An object of a class that is not on the list, never built; ``content`` are its attributes or items."""

    name: str
    content: Map = field(default_factory=Map)


def kind_of(value: Any) -> str | None:
    """Return the type of a container or tagged value that is no plain dict."""
    if isinstance(value, Tagged):
        return value.kind
    if isinstance(value, Map):
        return value.kind
    if isinstance(value, list):
        return "list"
    return "tuple" if isinstance(value, tuple) else None
