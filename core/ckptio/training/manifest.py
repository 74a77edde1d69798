"""``manifest.json`` of a step directory: its files with their sizes and checksums; written last.

::

    {
      "ckptio_manifest": 1,
      "step": 40,
      "parts": {"model": {"path": "model.ckpt", "format": "statedict"}, ...},
      "files": {"model.ckpt": {"size": 123, "crc32": "0123abcd"}, ...}
    }

A directory that has a manifest was written whole: it appears by one rename with everything in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ckptio.errors import CorruptCheckpointError
from ckptio.files import read_whole
from ckptio.jsontext import parse_object
from ckptio.training.checksums import file_crc32

__all__ = ["MANIFEST", "Manifest", "damage", "read_manifest"]

MANIFEST = "manifest.json"
_KEY = "ckptio_manifest"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a step directory consists of.

    ``parts`` maps each part (``model``, ``optimizer``, further states) to its path in the directory and the
    name of its format; ``files`` maps each path to its size in bytes and its CRC-32.
    """

    step: int
    parts: Mapping[str, tuple[str, str]]
    files: Mapping[str, tuple[int, int]]

    def to_json(self) -> bytes:
        document = {
            _KEY: _VERSION,
            "step": self.step,
            "parts": {name: {"path": path, "format": kind} for name, (path, kind) in self.parts.items()},
            "files": {
                path: {"size": size, "crc32": f"{crc:08x}"} for path, (size, crc) in self.files.items()
            },
        }
        return json.dumps(document, indent=2).encode("ascii") + b"\n"


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a step directory, None when it has none.

    Raises `CorruptCheckpointError` for a damaged one and `UnsupportedError` for a pipe; no path in it leaves
    the directory.
    """
    path = directory / MANIFEST
    try:
        data = read_whole(path, "manifest")
    except FileNotFoundError:
        return None
    document = parse_object(data, "the manifest", path=path)
    try:
        return _parse(document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptCheckpointError(f"no manifest of this version of ckptio: {error}", path=path) from None


def _parse(document: Mapping[str, Any]) -> Manifest:
    if document[_KEY] != _VERSION or type(document["step"]) is not int:
        raise ValueError(f"{_KEY} {document[_KEY]!r}, step {document['step']!r}")
    files = {}
    for path, each in document["files"].items():
        if type(each["size"]) is not int or each["size"] < 0:
            raise ValueError(f"the size of {path!r}")
        files[_inside(path)] = each["size"], int(each["crc32"], 16)
    parts = {name: (_inside(each["path"]), str(each["format"])) for name, each in document["parts"].items()}
    for name, (path, _) in parts.items():
        if not any(file == path or file.startswith(f"{path}/") for file in files):
            raise ValueError(f"no file of the part {name!r} is listed")
    return Manifest(document["step"], parts, files)


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise ValueError(f"{path!r} is no path inside of the directory")
    return path


def damage(directory: Path, manifest: Manifest, *, checksums: bool = False) -> str | None:
    """Return how the files differ from what the manifest says, or None when they do not.

    Sizes are compared, and with ``checksums`` every byte is read.
    """
    for path, (size, crc) in manifest.files.items():
        file = directory / path
        if not file.is_file():
            return f"{path} is missing"
        found = file.stat().st_size
        if found != size:
            return f"{path} has {found} bytes; the manifest says {size}"
        if checksums:
            actual = file_crc32(file)
            if actual != crc:
                return f"{path} is damaged: its CRC-32 is {actual:08x}; the manifest says {crc:08x}"
    return None
