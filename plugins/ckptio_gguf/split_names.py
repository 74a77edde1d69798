"""The names of the files of a split model: ``model-00001-of-00003.gguf`` is the first of three.

Source: ``llama_split_path`` of llama.cpp, by which it finds the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckptio import Confidence, Match, UnsupportedError
from ckptio.errors import listed, some

__all__ = ["SUFFIX", "Place", "locate", "match_directory", "place_of"]

SUFFIX = ".gguf"
_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL | re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a file in a set, by its name: the ``number``-th (from 1) of ``count``."""

    prefix: str
    number: int
    count: int

    def name(self, number: int) -> str:
        """Return the name of another file of the set."""
        return f"{self.prefix}-{number:05}-of-{self.count:05}{SUFFIX}"


def place_of(name: str) -> Place | None:
    """Return the place that the name of a file says, None when it is no name of a set's."""
    found = _NAME.fullmatch(name)
    if found is None or not 1 <= int(found[2]) <= int(found[3]):
        return None
    return Place(found[1], int(found[2]), int(found[3]))


def locate(directory: Path) -> Path | None:
    """Return the one model of ``directory``, a whole file or the first file of a set; None without any.

    Raises `UnsupportedError` that lists them when there are several.
    """
    found = _models(entry.name for entry in directory.iterdir() if entry.is_file())
    if len(found) > 1:
        raise UnsupportedError(f"{directory}: holds several models; name one of them:\n{listed(found)}")
    return directory / found[0] if found else None


def match_directory(listing: Sequence[str]) -> Match:
    """Say whether a directory is a model: not for sure beside weights of another suffix, or another model."""
    from ckptio.weights import WEIGHTS

    found = _models(listing)
    if not found:
        return Match(Confidence.NO, f"a directory without a file *{SUFFIX}")
    what = f"a directory that holds {some(found)}"
    usual = next((name for name in WEIGHTS if name in listing), None)
    if usual is not None:
        return Match(Confidence.NAME, f"{what}, but transformers takes {usual}")
    return Match(Confidence.SURE if len(found) == 1 else Confidence.NAME, what)


def _models(names: Iterable[str]) -> list[str]:
    """Return the whole files among ``names``, and of each set the first file that is there."""
    found: dict[str, str] = {}
    for name in sorted(names):
        if name.endswith(SUFFIX) and not name.startswith("."):
            place = place_of(name)
            found.setdefault(place.name(1) if place else name, name)
    return list(found.values())
