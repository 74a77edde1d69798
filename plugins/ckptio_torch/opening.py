"""Opening what ``torch.save`` wrote: an archive, an older stream, or shards by their index."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from ckptio import Checkpoint, UnsupportedError, open_source
from ckptio.folders import with_config
from ckptio.leaves import join_keys
from ckptio.shards import ShardIndex, open_shards, read_index
from ckptio.weights import locate
from ckptio_torch.format import INDEX, SHARD, TAR, WHOLE
from ckptio_torch.legacy import read_legacy
from ckptio_torch.zipped import read_zip

__all__ = ["open_checkpoint"]


def open_checkpoint(path: Path, *, skip_unknown: bool) -> Checkpoint:
    """Open a file, an index, or a directory that holds one; a model's ``config.json`` is the config."""
    open_one = functools.partial(_open_file, skip_unknown=skip_unknown)
    found = locate(path, SHARD, WHOLE) if path.is_dir() else path
    if found is None:
        raise UnsupportedError(f"{path}: a directory without {WHOLE} or an index *{INDEX}; name a file in it")
    index = found.name.endswith(".json")
    return with_config(open_shards(_named_index(found), open_one) if index else open_one(found), path, found)


def _named_index(path: Path) -> ShardIndex:
    """Read an index, whose names are keys as they are: a slash in one is no nesting."""
    index = read_index(path)
    files = {join_keys((name,)): file for name, file in index.weight_map.items()}
    ties = {join_keys((alias,)): join_keys((name,)) for alias, name in index.aliases.items()}
    return dataclasses.replace(index, weight_map=files, aliases=ties)


def _open_file(path: Path, *, skip_unknown: bool) -> Checkpoint:
    with open_source(path) as file:
        head = file.read_at(0, min(file.size, 512))
        if head[:4] == b"PK\x03\x04":
            return read_zip(file, skip_unknown=skip_unknown)
        if head[TAR] == b"ustar":
            raise UnsupportedError(
                f"{path}: a tar archive; if it is a checkpoint of torch before 0.1.10, "
                "load and save it with a torch that reads it"
            )
        return read_legacy(file, skip_unknown=skip_unknown)
