"""What is not tensors, as strings in a map: ties, leaves and metadata; the package describes the keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptio import Checkpoint, CorruptCheckpointError, Problem
from ckptio.jsontext import nesting_problem, parse_object
from ckptio.leaves import decode_leaf, encode_leaf, leaf_problem
from ckptio.shards import recorded_ties

__all__ = ["FORMAT", "Notes", "decode_notes", "encode_notes", "note_problems"]

FORMAT = {"format": "pt"}
"""What transformers wants to find in every file."""
_FRAMEWORKS = frozenset({"pt", "tf", "flax", "mlx", "np"})
_LEAVES = "ckptio.leaves"
_METADATA = "ckptio.metadata"
_TAKEN = frozenset({"format", "total_size", "total_parameters", _LEAVES, _METADATA})


@dataclass(frozen=True, slots=True)
class Notes:
    """What a map of strings says."""

    aliases: dict[str, str]
    leaves: dict[str, Any]
    metadata: dict[str, Any]


def encode_notes(checkpoint: Checkpoint) -> dict[str, str]:
    """Return all that a checkpoint has beside its tensors; `note_problems` has found it possible."""
    plain: dict[str, str] = {}
    other: dict[str, Any] = {}
    for key, value in checkpoint.metadata.items():
        (plain if _is_plain(key, value, checkpoint) else other)[key] = value
    notes = {**plain, **checkpoint.aliases}
    if other:
        notes[_METADATA] = _dumps(other)
    if checkpoint.leaves:
        notes[_LEAVES] = _dumps({path: encode_leaf(leaf) for path, leaf in checkpoint.leaves.items()})
    return notes


def decode_notes(
    metadata: Mapping[str, Any], names: Mapping[str, Any], path: Path, offset: int | None = None
) -> Notes:
    """Return what ``metadata`` of the file at ``path`` says beside the tensors called ``names``.

    Raises `CorruptCheckpointError` when one of the keys of ckptio does not hold what it should.
    """
    aliases, rest = recorded_ties(metadata, names)
    if rest.get("format") in _FRAMEWORKS:
        del rest["format"]
    ours = {key: _parsed(key, rest.pop(key), path, offset) for key in (_METADATA, _LEAVES) if key in rest}
    joined = {**rest, **ours.get(_METADATA, {})}
    problem = nesting_problem(joined)
    if problem:
        raise CorruptCheckpointError(f"the metadata is {problem}", path=path, offset=offset)
    leaves = {}
    for name, encoded in ours.get(_LEAVES, {}).items():
        try:
            leaves[name] = decode_leaf(encoded)
        except ValueError as error:
            raise CorruptCheckpointError(f"{_LEAVES}: {error}", path=path, offset=offset) from None
    return Notes(aliases, leaves, joined)


def note_problems(checkpoint: Checkpoint) -> Iterator[Problem]:
    """Yield what of ties, leaves and metadata cannot be written."""
    for alias in checkpoint.aliases:
        if alias in _TAKEN:
            yield Problem(alias, "a tie of this name cannot be recorded; -o ties=full stores it as a tensor")
    for path, leaf in checkpoint.leaves.items():
        problem = leaf_problem(leaf) or _json_problem({path: encode_leaf(leaf)})
        if problem:
            yield Problem(path, problem)
    for key, value in checkpoint.metadata.items():
        problem = nesting_problem(value) or _json_problem({key: value})
        if problem:
            yield Problem(str(key), f"metadata that is {problem}")


def _is_plain(key: str, value: Any, checkpoint: Checkpoint) -> bool:
    """Return whether an entry of the metadata can stand as it is and be read as what it is."""
    return (
        isinstance(value, str)
        and key not in _TAKEN
        and key not in checkpoint.aliases
        and (value not in checkpoint.specs or key in checkpoint.specs)
    )


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _json_problem(value: Any) -> str | None:
    try:
        _dumps(value).encode()
    except UnicodeEncodeError:
        return "not text: it has a lone surrogate"
    except (TypeError, ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return None


def _parsed(key: str, value: Any, path: Path, offset: int | None) -> dict[str, Any]:
    if not isinstance(value, str):
        raise CorruptCheckpointError(f"{key} is not a string", path=path, offset=offset)
    return parse_object(value.encode(), key, path=path, offset=offset or 0)
