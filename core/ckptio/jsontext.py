"""JSON out of files of unknown origin: no key twice, no NaN, no lone surrogate, no bottomless nesting."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from ckptio.errors import CorruptCheckpointError
from ckptio.limits import current_limits

__all__ = ["nesting_problem", "parse_object"]

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SHOWN = 80


def parse_object(data: bytes, what: str, *, path: Path, offset: int = 0) -> dict[str, Any]:
    """Return the JSON object that ``data`` is; ``what`` it is and its ``offset`` go into an error.

    A key that occurs twice is refused: which of the two holds would depend on the reader. Raises
    `CorruptCheckpointError` with the byte offset in the file at ``path``.
    """

    def error(why: str, position: int = 0) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{what} {why}", path=path, offset=offset + position)

    try:
        text = data.decode()
        found = json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)
        if _SURROGATE.search(data):
            json.dumps(found, ensure_ascii=False).encode()
    except json.JSONDecodeError as problem:
        position = len(text[: problem.pos].encode())
        raise error(f"is not valid JSON: {problem.msg}", position) from None
    except UnicodeDecodeError as problem:
        raise error(f"is not UTF-8: {problem.reason}", problem.start) from None
    except UnicodeEncodeError:
        raise error("has a string with a lone surrogate: it is not text") from None
    except RecursionError:
        raise error(f"is nested more than {current_limits().nesting} deep") from None
    except ValueError as problem:
        raise error(f"is not valid JSON: {problem}") from None
    if not isinstance(found, dict):
        raise error("is not a JSON object")
    return found


def nesting_problem(value: Any) -> str | None:
    """Return why a parsed value is nested too deep to be passed on, or None."""
    deepest = current_limits().nesting
    stack = [(value, 1)]
    while stack:
        each, depth = stack.pop()
        if not isinstance(each, dict | list):
            continue
        if depth > deepest:
            return f"nested more than {deepest} deep"
        stack.extend((item, depth + 1) for item in (each.values() if isinstance(each, dict) else each))
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice[:_SHOWN]!r} occurs twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:_SHOWN]} is beyond any float")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
