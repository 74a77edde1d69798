"""Which file of a model's folder has the weights: the order of transformers, else the only one that may.

Source of the order: ``_get_resolved_checkpoint_files`` of transformers' ``modeling_utils`` (version 5.24).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ckptio.errors import UnsupportedError, listed, some
from ckptio.format import Confidence, Match

__all__ = ["INDEX_SUFFIX", "WEIGHTS", "candidates", "locate", "match_folder"]

INDEX_SUFFIX = ".index.json"
"""What the name of an index ends in, after the suffix of the shards."""
WEIGHTS = (
    "model.safetensors",
    f"model.safetensors{INDEX_SUFFIX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX_SUFFIX}",
)
"""The names under which transformers looks for weights, the first that is there taken."""

_NUMBERED = re.compile(r"-\d{5}-of-\d{5}\b")


def candidates(names: Iterable[str], suffix: str, whole: str | None = None) -> list[str]:
    """Return which of the ``names`` in a directory may be its checkpoint, in a format of this ``suffix``.

    The first of `WEIGHTS` is the only one; else indexes, else whole files (``whole`` is the only name that
    one may have). One shard of several is no checkpoint, and no hidden file is.
    """
    possible, indexes = _possible(names, suffix, whole)
    usual = [name for name in WEIGHTS if name in possible]
    return usual[:1] or indexes or possible


def locate(directory: Path, suffix: str, whole: str | None = None) -> Path | None:
    """Return the checkpoint of ``directory``: the one of its `candidates`, None where there is none.

    Raises `UnsupportedError` that lists them when there are several.
    """
    names = (entry.name for entry in directory.iterdir() if entry.is_file())
    found = candidates(names, suffix, whole)
    if len(found) > 1:
        raise UnsupportedError(f"{directory}: holds several checkpoints; name one of them:\n{listed(found)}")
    return directory / found[0] if found else None


def match_folder(listing: Sequence[str], suffix: str, whole: str | None = None) -> Match:
    """Say whether a directory is one of a format of this ``suffix``, and what in it is passed over."""
    found = candidates(listing, suffix, whole)
    if not found:
        return Match(Confidence.NO, f"a directory without an index *{suffix}{INDEX_SUFFIX} or a whole file")
    if len(found) > 1:
        return Match(Confidence.NAME, f"a directory that holds {some(found)}")
    usual = [name for name in WEIGHTS if name in listing]
    if usual and usual[0] != found[0]:
        what = f"a directory that holds {found[0]}, but transformers takes {usual[0]}"
        return Match(Confidence.NAME, what)
    others = [
        name for name in dict.fromkeys([*usual, *_possible(listing, suffix, whole)[0]]) if name != found[0]
    ]
    passed = f", which transformers takes before {some(others)}" if usual and others else ""
    return Match(Confidence.SURE, f"a directory that holds {found[0]}{passed}")


def _possible(names: Iterable[str], suffix: str, whole: str | None) -> tuple[list[str], list[str]]:
    """Return all names that a checkpoint may have, and the indexes among them."""
    seen = sorted(name for name in names if not name.startswith("."))
    indexes = [name for name in seen if name.endswith(f"{suffix}{INDEX_SUFFIX}")]
    files = [name for name in seen if name.endswith(suffix) and not _NUMBERED.search(name)]
    return indexes + [name for name in files if whole in (None, name)], indexes
