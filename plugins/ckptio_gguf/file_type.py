"""``general.file_type``: the element type that most of a model is said to be stored in.

Source: ``LlamaFileType`` of the package gguf 0.19, and llama.cpp's loader, which tells its users what the
value says and guesses only where there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ckptio import TensorSpec
from ckptio_gguf.types import BY_NAME, FILE_TYPES, GgmlType

__all__ = ["FILE_TYPE", "contradicted", "mostly", "with_file_type"]

FILE_TYPE = "general.file_type"


def mostly(tensors: Iterable[tuple[TensorSpec, GgmlType]]) -> GgmlType | None:
    """Return the type of most elements of the tensors with two or more dimensions, None without such.

    Of two with as many elements it is the quantised one.
    """
    elements: Counter[str] = Counter()
    for spec, kind in tensors:
        if len(spec.shape) > 1:
            elements[kind.name] += spec.size
    if not elements:
        return None
    return max((BY_NAME[name] for name in elements), key=lambda each: (elements[each.name], each.block > 1))


def contradicted(metadata: Mapping[str, Any], kind: GgmlType | None) -> bool:
    """Return whether the metadata say a type of the file, and its tensors, mostly of a plain one, another."""
    if FILE_TYPE not in metadata or kind is None or kind.dtype is None:
        return False
    return bool(metadata[FILE_TYPE] != FILE_TYPES.get(kind.name))


def with_file_type(
    metadata: Mapping[str, Any], kind: GgmlType | None, *, made: bool, noted: Any, add: bool
) -> dict[str, Any]:
    """Return the metadata with the type of the file, where tensors mostly of ``kind`` show another.

    Blocks that are carried (quantised, and not ``made`` now) keep what was said: a mixture of types has
    values that no one type tells. So does a file whose value was wrong of this very type before, which the
    reader has ``noted``: it is not ours to mend. Only with ``add`` is the key written where there was none.
    """
    found = dict(metadata)
    if kind is None or (kind.dtype is None and not made) or (FILE_TYPE not in found and not add):
        return found
    value = FILE_TYPES.get(kind.name)
    if value is None:
        if noted != kind.name:
            found.pop(FILE_TYPE, None)
    elif noted != kind.name or FILE_TYPE not in found:
        found[FILE_TYPE] = value
    return found
