"""`save`: arrays by name become a checkpoint file; what shares storage is a tie."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.checkpoint import Checkpoint
from ckptio.conversion import save_checkpoint
from ckptio.dtypes import DType
from ckptio.errors import OptionError
from ckptio.leaves import leaf_problem
from ckptio.memory import MemoryCheckpoint
from ckptio.report import ConversionReport

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["in_memory", "save"]


def save(
    tensors: Mapping[str, npt.NDArray[Any] | np.generic],
    path: str | os.PathLike[str],
    *,
    checkpoint_format: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    leaves: Mapping[str, Any] | None = None,
    aliases: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> ConversionReport:
    """Save arrays by name, in any strides and byte order; nothing is published unless all is.

    Names whose arrays are the same memory in the same view are ties, as are those of ``aliases``
    (alias to name). ``leaves`` are values beside the tensors by path. Raises as `convert` does.
    """
    checkpoint = in_memory(tensors, aliases or {}, leaves or {}, metadata or {})
    return save_checkpoint(
        checkpoint, path, checkpoint_format=checkpoint_format, options=options, overwrite=overwrite
    )


def _same_bytes(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()


def _require_text(what: str, names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise OptionError(f"{name!r}: the name of {what} must be a str")


def _require_text_keys(metadata: Mapping[str, Any]) -> None:
    """Refuse keys, however deep, that JSON would turn into text without a word."""
    stack: list[Any] = [metadata]
    seen: set[int] = set()
    while stack:
        each = stack.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Mapping):
            _require_text("a metadata entry", each)
            stack.extend(each.values())
        elif isinstance(each, list | tuple):
            stack.extend(each)


def in_memory(
    tensors: Mapping[str, npt.NDArray[Any] | np.generic],
    aliases: Mapping[str, str],
    leaves: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> Checkpoint:
    """Return a checkpoint over arrays; the same view of the same memory under two names is a tie.

    Raises `OptionError` for what no checkpoint can hold.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    ties = dict(aliases)
    seen: dict[tuple[Any, ...], str] = {}
    _require_text("a tensor", tensors)
    _require_text("an alias", ties)
    _require_text("a leaf", leaves)
    _require_text_keys(metadata)
    for name, given in tensors.items():
        if isinstance(given, np.ma.MaskedArray):
            raise OptionError(f"{name}: the mask of a masked array would be lost; save data and mask apart")
        array = np.asarray(given)
        try:
            DType.of(array.dtype)
        except OptionError as error:
            raise OptionError(f"{name}: {error}") from None
        view = (array.__array_interface__["data"][0], array.dtype, array.shape, array.strides)
        if name in ties:
            other = np.asarray(tensors[ties[name]]) if ties[name] in tensors else array
            if not _same_bytes(array, other):
                raise OptionError(f"{name!r} is given as an alias of {ties[name]!r}, but their values differ")
            continue
        if array.size and isinstance(given, np.ndarray) and view in seen:
            ties[name] = seen[view]
            continue
        seen[view] = name
        arrays[name] = array
    for alias, name in ties.items():
        if name not in arrays:
            raise OptionError(f"the alias {alias!r} is of {name!r}, which is no stored tensor")
    for path, leaf in leaves.items():
        problem = leaf_problem(leaf)
        if problem is not None:
            raise OptionError(f"the leaf {path!r}: {problem}")
        if path in arrays or path in ties:
            raise OptionError(f"{path!r} is both a tensor and a leaf")
    return MemoryCheckpoint(arrays, aliases=ties, leaves=leaves, metadata=metadata)
