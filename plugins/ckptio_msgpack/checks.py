"""What of a checkpoint msgpack cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ckptio import Checkpoint, Problem, TensorSpec, current_limits
from ckptio.adapters import expand_aliases
from ckptio.leaves import leaf_problem
from ckptio_msgpack.tree import build_tree, in_order
from ckptio_msgpack.wire import CHUNKED, FLAT, fits_one_ext

__all__ = ["content_problems"]

_LONGEST = (1 << 30) - 1
"""Characters, of up to four bytes each, or bytes of one string: msgpack counts bytes in 32 bits."""


def content_problems(checkpoint: Checkpoint) -> Iterator[Problem]:
    """Yield what stands in the way of writing ``checkpoint``, apart from the capabilities."""
    checkpoint = expand_aliases(checkpoint)
    tree = build_tree(checkpoint)
    flat = FLAT in tree
    for name in (*checkpoint.specs, *checkpoint.leaves):
        problem = _name_problem(name)
        if problem:
            yield Problem(name, problem)
    for path, value in checkpoint.leaves.items():
        if path in checkpoint.specs:
            yield Problem(path, "a tensor and a plain value have the same name")
        problem = leaf_problem(value) or _leaf_problem(value, 1 if flat else path.count("/") + 1)
        if problem:
            yield Problem(path, problem)
    for _, value, in_list in in_order(tree):
        if in_list and isinstance(value, TensorSpec) and not fits_one_ext(value):
            yield Problem(value.name, f"{value.nbytes} bytes inside a list, where flax chunks no array")


def _name_problem(name: str) -> str | None:
    if name == FLAT or CHUNKED in name.split("/"):
        return "the name has a key that is a mark of the format"
    return None if _is_text(name) else "the name is not valid Unicode"


def _leaf_problem(value: Any, depth: int) -> str | None:
    """Return why a leaf ``depth`` maps deep cannot be written, or None."""
    deepest = current_limits().nesting
    stack = [(value, depth)]
    while stack:
        each, depth = stack.pop()
        if isinstance(each, list | tuple):
            if depth >= deepest:
                return f"lists and maps are nested more than {deepest} deep"
            stack.extend((item, depth + 1) for item in each)
        elif isinstance(each, int) and not -(1 << 63) <= each < 1 << 64:
            return f"an integer of {each.bit_length()} bits; msgpack has -2**63 to 2**64 - 1"
        elif isinstance(each, str) and not _is_text(each):
            return "a string that is not valid Unicode"
        elif isinstance(each, str | bytes) and len(each) > _LONGEST:
            return f"{len(each)} characters or bytes in one plain value; no more than {_LONGEST} are written"
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
