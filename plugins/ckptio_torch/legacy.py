"""torch's streams of pickles (torch.save before 1.6, and since on request).

Five pickles follow each other: the magic number, the protocol version 1001, what machine wrote it, the
object, and the list of storage keys; then each storage in that order: its elements as i64, and their
bytes, little-endian on every machine (source: ``torch/serialization.py``, ``_legacy_load``).
"""

from __future__ import annotations

import re
import struct
from typing import Any

from ckptio import Cursor, SourceFile, UnsupportedError
from ckptio_torch.reading import Place, TorchCheckpoint, read_tree
from ckptio_torch.records import Map
from ckptio_torch.tree import Tree
from ckptio_torch.unpickler import Unpickler

__all__ = ["is_legacy", "read_legacy"]

_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001
_COUNT = struct.Struct("<q")
_BEGINNING = re.compile(
    rb"\x80[\x02-\x05](\x95.{8})?\x8a\x0a" + re.escape(_MAGIC.to_bytes(10, "little")), re.S
)


def is_legacy(head: bytes) -> bool:
    """Return whether a file that begins with ``head`` is such a stream."""
    return _BEGINNING.match(head) is not None


def read_legacy(file: SourceFile, *, skip_unknown: bool) -> TorchCheckpoint:
    """Return the checkpoint that the stream ``file`` holds."""
    cursor = Cursor(file)
    if Unpickler(cursor).load() != _MAGIC:
        raise cursor.error("no checkpoint of torch: a pickle that is not torch's magic number", 0)
    version = Unpickler(cursor).load()
    if version != _VERSION:
        raise UnsupportedError(f"{file.path}: version {_plain(version)} of torch's format; only 1001 is read")
    if not isinstance(Unpickler(cursor).load(), Map):
        raise cursor.error("no description of the machine that wrote the file")
    tree = read_tree(cursor, file.path, skip_unknown=skip_unknown)
    keys = Unpickler(cursor).load()
    if not isinstance(keys, list):
        raise cursor.error("no list of storages")
    return TorchCheckpoint(file, tree, _storages(cursor, keys, tree))


def _storages(cursor: Cursor, keys: list[Any], tree: Tree) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for key in keys:
        if not isinstance(key, str) or key in places:
            raise cursor.error("a list of storages with a key that is no text or stands there twice")
        root = tree.storages.get(key)
        if root is None:
            # Its element type, and so its length in the file, is in what was left out of the pickle.
            raise cursor.error(f"the storage {key[:80]!r} is of no type that is read")
        begin = cursor.offset
        (count,) = cursor.unpack(_COUNT, f"the storage {key[:80]!r}")
        size = count * (root.dtype.itemsize if root.dtype is not None else 1)
        if size != root.root_nbytes:
            raise cursor.error(
                f"the storage {key[:80]!r} is of {size} bytes here, of {root.root_nbytes} in the pickle",
                begin,
            )
        places[key] = Place(cursor.offset, size)
        cursor.skip(size, f"the storage {key[:80]!r}")
    if cursor.left:
        raise cursor.error(f"{cursor.left} bytes after the last storage")
    return places


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str) else type(value).__name__
