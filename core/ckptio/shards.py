"""Sharded checkpoints in the Hugging Face convention, read as one; a format says how one shard is opened.

An index is a JSON file beside its shards::

    {"metadata": {"total_size": 5656, "tied_b": "tied_a"}, "weight_map": {"tied_a": "model-00001-of-00002.…"}}

``total_size`` counts the bytes of tensors, not of files. transformers adds ``total_parameters``.
huggingface_hub records a tie that no shard stores twice as a key of the metadata (source:
``huggingface_hub.serialization``, and files that it wrote).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptio.checkpoint import Checkpoint
from ckptio.errors import CorruptCheckpointError, listed, shown
from ckptio.files import SourceFile
from ckptio.joined import JoinedCheckpoint
from ckptio.jsontext import nesting_problem, parse_object
from ckptio.limits import current_limits

__all__ = [
    "JoinedCheckpoint",
    "ShardIndex",
    "open_shards",
    "read_index",
    "recorded_ties",
]

_SIZES = ("total_size", "total_parameters")
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """What an index says: ``weight_map`` gives the file of each tensor, beside ``path``.

    ``aliases`` are the ties that it records, ``metadata`` the rest of its metadata without the sizes.
    """

    path: Path
    weight_map: Mapping[str, str]
    aliases: Mapping[str, str]
    metadata: Mapping[str, Any]
    total_size: int | None

    @property
    def files(self) -> list[str]:
        """The names of the shards, sorted."""
        return sorted(set(self.weight_map.values()))


def read_index(path: Path) -> ShardIndex:
    """Read the index at ``path``; its shards are not looked at.

    Raises `CorruptCheckpointError` when it is no index, or names a shard that is not a plain file name:
    an index never leads out of its directory.
    """
    with contextlib.closing(SourceFile(path)) as file:
        if file.size > current_limits().header_bytes:
            raise _error(path, f"the index is larger than {current_limits().header_bytes} bytes")
        content = parse_object(file.read_at(0, file.size), "the index", path=path)
    match content:
        case {"weight_map": dict(weight_map), "metadata": dict(metadata)}:
            pass
        case {"weight_map": dict(weight_map)} if content.get("metadata") is None:
            metadata = {}
        case _:
            raise _error(path, "not an index of shards: it has no weight_map, or metadata that is no object")
    if len(weight_map) > current_limits().tensors:
        raise _error(path, f"{len(weight_map)} tensors are more than the limit of {current_limits().tensors}")
    odd = [name for name in dict.fromkeys(map(_plain_or_none, weight_map.values())) if name is not None]
    if odd:
        raise _error(path, "a shard must be a plain file name beside the index, not", odd)
    problem = nesting_problem(metadata)
    if problem:
        raise _error(path, f"its metadata is {problem}")
    aliases, rest = recorded_ties(metadata, weight_map)
    return ShardIndex(
        path,
        weight_map,
        aliases,
        {key: value for key, value in rest.items() if key not in _SIZES},
        _total_size(path, metadata.get("total_size")),
    )


def recorded_ties(
    metadata: Mapping[str, Any], names: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Split metadata into the ties that it records, alias to name, and the rest.

    An entry is a tie when its value is the name of a stored tensor and its key is not: so write
    ``safetensors.torch.save_model`` and huggingface_hub. ``names`` are the stored tensors.
    """
    ties = {
        key: value
        for key, value in metadata.items()
        if isinstance(value, str) and value in names and key not in names and key != "format"
    }
    return ties, {key: value for key, value in metadata.items() if key not in ties}


def open_shards(index: ShardIndex, open_shard: Callable[[Path], Checkpoint]) -> JoinedCheckpoint:
    """Open all shards of ``index`` with ``open_shard`` and hold them against it, both ways.

    The shards are looked up beside the index, and not beside what it may be a link to. No tensor is
    read. Raises `CorruptCheckpointError` that lists every missing shard, or every tensor that is
    missing, unknown to the index or elsewhere, and a wrong total_size.
    """
    paths = {name: index.path.with_name(name) for name in index.files}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing:
        raise _error(index.path, f"{len(missing)} of its {len(paths)} shards are missing", missing)
    with contextlib.ExitStack() as opened:
        parts = {}
        for name, path in paths.items():
            parts[name] = opened.enter_context(open_shard(path))
        problems = [*_misplaced(index, parts), *_wrong_size(index, parts.values())]
        if problems:
            raise _error(index.path, "the index and its shards disagree", problems)
        aliases = {
            alias: parts[index.weight_map[name]].canonical(name) for alias, name in index.aliases.items()
        }
        joined = JoinedCheckpoint(
            list(parts.values()), aliases=aliases, metadata=_join_metadata(index.metadata, parts)
        )
        opened.pop_all()
    return joined


def _plain_or_none(name: Any) -> str | None:
    """Return what is odd about the name of a shard, or None when it is a plain file name."""
    if isinstance(name, str) and name not in ("", ".", "..") and not any(c in name for c in "/\\\0"):
        return None
    return shown(name, _SHOWN)


def _total_size(path: Path, value: Any) -> int | None:
    if value is None:
        return None
    # Some programs sum in floats.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _error(path, f"total_size is not a number of bytes: {shown(value, _SHOWN)}")
    return value


def _misplaced(index: ShardIndex, parts: Mapping[str, Checkpoint]) -> Iterator[str]:
    """Yield every tensor that is not where the index says, or that it does not know."""
    count = Counter(name for part in parts.values() for name in (*part.specs, *part.leaves))
    for name, file in index.weight_map.items():
        if name not in parts[file] and name not in parts[file].leaves:
            yield f"{shown(name, _SHOWN)} is not in {file}"
    for file, part in parts.items():
        for name in part.specs:
            if name not in index.weight_map:
                yield f"{shown(name, _SHOWN)} in {file} is not in the index"
        for name in (*part.specs, *part.leaves):
            if count[name] > 1:
                yield f"{shown(name, _SHOWN)} is in {file} and in another shard too"
        for alias in part.aliases:
            if index.weight_map.get(alias, file) != file:
                yield f"{shown(alias, _SHOWN)} in {file} is elsewhere by the index"


def _wrong_size(index: ShardIndex, parts: Iterable[Checkpoint]) -> Iterator[str]:
    """Yield a total_size that is not the bytes of the tensors: ties once, or (as some count) each time."""
    once = each_time = 0
    for part in parts:
        stored = sum(spec.nbytes for spec in part.specs.values())
        once += stored
        each_time += stored + sum(part.specs[name].nbytes for name in part.aliases.values())
    if index.total_size not in (None, once, each_time):
        yield f"total_size is {index.total_size}, but the tensors have {once} bytes"


def _join_metadata(metadata: Mapping[str, Any], parts: Mapping[str, Checkpoint]) -> dict[str, Any]:
    """Join the index's metadata with the shards': what these do not agree on goes under ``shards``."""
    joined = dict(metadata)
    apart: dict[str, dict[str, Any]] = {}
    for file, part in parts.items():
        for key, value in part.metadata.items():
            if joined.setdefault(key, value) != value:
                apart.setdefault(file, {})[key] = value
    return {**joined, "shards": apart} if apart else joined


def _error(path: Path, what: str, lines: Sequence[str] = ()) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{what}:\n{listed(lines)}" if lines else what, path=path)
