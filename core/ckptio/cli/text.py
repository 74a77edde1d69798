"""Text for people and JSON for programs; what comes from a file never steers the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["byte_count", "escape", "escape_lines", "print_json", "print_note", "print_table", "shortened"]

_SHORT = 200
_WIDEST = 120
_NO_JSON = {
    "NaN": {"$float": "nan"},
    "Infinity": {"$float": "inf"},
    "-Infinity": {"$float": "-inf"},
}


def escape(text: str) -> str:
    """Return ``text`` on one line, with every character that is not printable written as an escape.

    Control characters would steer the terminal, marks of direction would reorder what is read, and
    lone surrogates cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def escape_lines(text: str) -> str:
    """Return ``text`` escaped, its line ends kept: for messages of several lines."""
    return "\n".join(escape(line) for line in text.split("\n"))


def shortened(text: str, limit: int = _SHORT) -> str:
    """Return ``text`` escaped, cut with ``…`` after ``limit`` characters."""
    return escape(text if len(text) <= limit else text[: limit - 1] + "…")


def byte_count(count: int) -> str:
    """Return a number of bytes for people: exact, and in a unit where that helps."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count:,} bytes ({count / size:.2f} {unit})"
    return f"{count} bytes"


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> None:
    """Print aligned columns; cells are never cut, and those of the columns ``right`` end flush.

    A cell too long to align with sticks out of its column, so that one name cannot widen every line.
    """
    lines = [list(header), *([escape(cell) for cell in row] for row in rows)]
    widths = [min(_WIDEST, max(map(len, column))) for column in zip(*lines, strict=True)]
    flush = set(right)
    for line in lines:
        cells = [
            cell.rjust(width) if index in flush else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def print_note(text: str) -> None:
    """Print a remark that is no part of a command's result."""
    print(f"note: {escape(text)}", file=sys.stderr)


def print_json(value: Any) -> None:
    """Print strict JSON in ASCII; a float that JSON lacks is an object, as in `ckptio.leaves`."""
    # By way of json's own reader: a walk of our own would be no match for deep nesting.
    strict = json.loads(json.dumps(value), parse_constant=_NO_JSON.__getitem__)
    print(json.dumps(strict, indent=2, allow_nan=False))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
