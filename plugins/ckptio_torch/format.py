"""`TorchFormat`: what ``torch.save`` writes, read and written without torch."""

from __future__ import annotations

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
)
from ckptio.format import capability_problems, parse_flag
from ckptio_torch.dtypes import DTYPES

# Readers and writers are imported when they are needed: formats are also loaded to recognise a file.

__all__ = ["INDEX", "SHARD", "TAR", "WHOLE", "TorchFormat"]

_PICKLE, _ZIP = b"\x80", b"PK"
SHARD = ".bin"
INDEX = f"{SHARD}.index.json"
WHOLE = "pytorch_model.bin"
TAR = slice(257, 262)
"""Where a tar says ``ustar``."""
_TAIL = 64 << 10


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
            parse_flag,
            "leave out objects of classes that are not on the list, instead of refusing the file",
            False,
        ),
    )

    def open(self, path: Path, options: Mapping[str, Any]) -> Checkpoint:
        from ckptio_torch.opening import open_checkpoint

        return open_checkpoint(path, skip_unknown=options["skip_unknown"])

    def write(self, checkpoint: Checkpoint, out: Output, options: Mapping[str, Any]) -> None:
        from ckptio_torch.writing import write_checkpoint

        write_checkpoint(checkpoint, out)

    def check(self, checkpoint: Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
        from ckptio_torch.checks import content_problems

        problems = capability_problems(self.capabilities, checkpoint.specs.values())
        problems.extend(content_problems(checkpoint))
        return problems

    def match(self, probe: Probe) -> Match:
        if probe.listing is not None:
            from ckptio.weights import match_folder

            return match_folder(probe.listing, SHARD, WHOLE)
        if probe.name.endswith(INDEX) and probe.head.lstrip()[:1] == b"{":
            return Match(Confidence.SURE, "an index of shards *.bin")
        if probe.head[:1] == _PICKLE and _is_stream(probe):
            return Match(Confidence.SURE, "a pickle of torch's magic number")
        if probe.head[TAR] == b"ustar" and probe.name.endswith(self.suffixes):
            return Match(Confidence.NAME, "a tar under a suffix of torch, as before 0.1.10")
        if probe.head[:2] == _ZIP and _is_archive(probe):
            return Match(Confidence.SURE, "a zip archive with <folder>/data.pkl")
        return Match(Confidence.NO, "neither an archive nor a stream of torch.save")


def _is_stream(probe: Probe) -> bool:
    from ckptio_torch.legacy import is_legacy

    return is_legacy(probe.head)


def _is_archive(probe: Probe) -> bool:
    """Return whether the archive's first entry, or its directory at the end, has <folder>/data.pkl."""
    from ckptio.archive import first_entry

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
