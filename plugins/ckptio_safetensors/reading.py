"""From a path to a checkpoint: one file, a directory with one in it, or shards by their index."""

from __future__ import annotations

import errno
from pathlib import Path

from ckptio import Checkpoint, FileCheckpoint, SourceFile, open_source
from ckptio.adapters import Annotated
from ckptio.folders import with_config
from ckptio.shards import open_shards, read_index
from ckptio.weights import INDEX_SUFFIX, locate
from ckptio_safetensors.header import LENGTH, SUFFIX, read_header
from ckptio_safetensors.notes import decode_notes

__all__ = ["is_index", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open the checkpoint at ``path``; the ``config.json`` of a model's folder is its config."""
    found = locate(path, SUFFIX) if path.is_dir() else path
    if found is None:
        what = f"No {SUFFIX}{INDEX_SUFFIX} and no whole {SUFFIX} file in the directory"
        raise FileNotFoundError(errno.ENOENT, what, str(path))
    return with_config(_open_at(found), path, found)


def _open_at(path: Path) -> Checkpoint:
    """Open a file: an index with its shards, or one whole checkpoint."""
    with open_source(path) as file:
        if is_index(path.name, file.read_at(0, min(file.size, LENGTH.size + 1)), file.size):
            file.close()
            return _open_set(path)
        return _open_file(file)


def is_index(name: str, head: bytes, size: int) -> bool:
    """Return whether a file is an index of shards, by its name, or by its content where it has another."""
    if name.endswith(INDEX_SUFFIX):
        return True
    # As a safetensors file, one that starts like JSON would have a header of petabytes.
    return head.startswith(b"{") and len(head) > LENGTH.size and LENGTH.unpack(head[:8])[0] > size


def _open_file(file: SourceFile) -> FileCheckpoint:
    header = read_header(file)
    notes = decode_notes(header.metadata, header.specs, file.path, LENGTH.size)
    return FileCheckpoint(
        file,
        header.specs,
        header.offsets,
        aliases=notes.aliases,
        leaves=notes.leaves,
        metadata=notes.metadata,
    )


def _open_shard(path: Path) -> Checkpoint:
    with open_source(path) as file:
        return _open_file(file)


def _open_set(path: Path) -> Checkpoint:
    index = read_index(path)
    notes = decode_notes(index.metadata, index.weight_map, path)
    joined = open_shards(index, _open_shard)
    # The keys of ckptio in the index stand for what they say.
    metadata = {key: value for key, value in joined.metadata.items() if key not in index.metadata}
    return Annotated(
        joined, leaves={**joined.leaves, **notes.leaves}, metadata={**notes.metadata, **metadata}
    )
