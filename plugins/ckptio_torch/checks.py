"""What of a checkpoint a file of torch cannot hold, beyond the capabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ckptio import Checkpoint, Problem
from ckptio.leaves import leaf_problem
from ckptio_torch.building import own_metadata
from ckptio_torch.emitter import LONGEST_INT

__all__ = ["content_problems"]

_LONGEST_TEXT = (1 << 30) - 1
"""Characters of up to four bytes each: the length of a string is written in 32 bits."""


def content_problems(checkpoint: Checkpoint) -> Iterator[Problem]:
    """Yield what stands in the way of writing ``checkpoint``."""
    for path, value in checkpoint.leaves.items():
        if path in checkpoint:
            yield Problem(path, "a tensor and a plain value have the same name")
        problem = leaf_problem(value) or _leaf_problem(value)
        if problem:
            yield Problem(path, problem)
    try:
        json.dumps(own_metadata(checkpoint), allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        yield Problem("metadata", "not text: it has a lone surrogate")
    except (TypeError, ValueError, RecursionError) as error:
        yield Problem("metadata", f"not JSON: {error}")


def _leaf_problem(value: Any) -> str | None:
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, list | tuple):
            stack.extend(each)
        elif isinstance(each, int) and each.bit_length() >= 8 * LONGEST_INT:
            return f"an integer of {each.bit_length()} bits; torch reads up to {8 * LONGEST_INT - 1}"
        elif isinstance(each, str | bytes) and len(each) > _LONGEST_TEXT:
            return f"{len(each)} characters or bytes in one value; no more than {_LONGEST_TEXT} are written"
    return None
