"""`TorchFormat`: what ``torch.save`` writes, read and written without torch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptio import (
    Capabilities,
    Checkpoint,
    Confidence,
    Format,
    Match,
    Option,
    Output,
    Probe,
    Problem,
    UnsupportedError,
    open_source,
)
from ckptio.archive import first_entry
from ckptio.format import capability_problems
from ckptio.leaves import join_keys
from ckptio.shards import ShardIndex, find_index, open_shards, read_index
from ckptio_torch.checks import content_problems
from ckptio_torch.dtypes import DTYPES
from ckptio_torch.legacy import is_legacy, read_legacy
from ckptio_torch.writing import write_checkpoint
from ckptio_torch.zipped import read_zip

__all__ = ["TorchFormat"]

_INDEX = ".bin.index.json"
_TAR = slice(257, 262)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


class TorchFormat(Format):
    """The zip archives and the older streams of ``torch.save``, and ``pytorch_model.bin.index.json``.

    Nested dicts, lists and tuples become names as in msgpack; what names cannot say is noted in
    ``metadata["torch"]``, so that writing gives the same tree again. The pickle is followed by an
    interpreter of our own that builds inert records: nothing in a file is ever imported or called.
    """

    name = "torch"
    summary = "torch.save: zip archives since 1.6 (read and written), older streams (read)"
    suffixes = (".pt", ".pth")
    capabilities = Capabilities(
        dtypes=frozenset(DTYPES.values()),
        aliases=True,
        leaves=True,
        metadata=True,
        nesting=True,
    )
    read_options = (
        Option(
            "skip_unknown",
            _flag,
            "leave out objects of classes that are not on the list, instead of refusing the file",
            False,
        ),
    )

    def open(self, path: Path, options: Mapping[str, Any]) -> Checkpoint:
        open_one = functools.partial(_open_file, skip_unknown=options["skip_unknown"])
        if path.is_dir():
            index = find_index(path, f"*{_INDEX}")
            if index is None:
                raise UnsupportedError(f"{path}: a directory without an index *{_INDEX}; name a file in it")
            return open_shards(_named_index(index), open_one)
        if path.name.endswith(".json"):
            return open_shards(_named_index(path), open_one)
        return open_one(path)

    def write(self, checkpoint: Checkpoint, out: Output, options: Mapping[str, Any]) -> None:
        write_checkpoint(checkpoint, out)

    def check(self, checkpoint: Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
        problems = capability_problems(self.capabilities, checkpoint.specs.values())
        problems.extend(content_problems(checkpoint))
        return problems

    def match(self, probe: Probe) -> Match:
        if probe.listing is not None:
            if any(name.endswith(_INDEX) for name in probe.listing):
                return Match(Confidence.SURE, f"a directory with an index *{_INDEX}")
            return Match(Confidence.NO, f"a directory without an index *{_INDEX}")
        if probe.name.endswith(_INDEX) and probe.head.lstrip()[:1] == b"{":
            return Match(Confidence.SURE, "an index of shards *.bin")
        if is_legacy(probe.head):
            return Match(Confidence.SURE, "a pickle of torch's magic number")
        if probe.head[_TAR] == b"ustar" and probe.name.endswith(self.suffixes):
            return Match(Confidence.NAME, "a tar under a suffix of torch, as before 0.1.10")
        if _is_archive(probe):
            return Match(Confidence.SURE, "a zip archive with <folder>/data.pkl")
        return Match(Confidence.NO, "neither an archive nor a stream of torch.save")


def _is_archive(probe: Probe) -> bool:
    """Return whether the archive's first entry, or its directory at the end, has <folder>/data.pkl."""
    first = first_entry(probe.head)
    if first is None:
        return False
    folder, slash, rest = first[0].partition("/")
    if not slash:
        return False
    if rest == "data.pkl":
        return True
    # Packed anew in another order; the directory has the names once more.
    end = probe.read_at(max(0, probe.size - _TAIL), _TAIL)
    return f"{folder}/data.pkl".encode("utf-8", "surrogateescape") in end


_TAIL = 64 << 10


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
        if head[_TAR] == b"ustar":
            raise UnsupportedError(
                f"{path}: a tar archive; if it is a checkpoint of torch before 0.1.10, "
                "load and save it with a torch that reads it"
            )
        return read_legacy(file, skip_unknown=skip_unknown)
