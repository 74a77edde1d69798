"""`MsgpackFormat`: flax's msgpack checkpoints, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptio import (
    Capabilities,
    Checkpoint,
    CkptError,
    Confidence,
    CorruptCheckpointError,
    DType,
    Format,
    Match,
    Option,
    Output,
    Probe,
    Problem,
    open_source,
)
from ckptio.format import capability_problems

__all__ = ["MAX_CHUNK_BYTES", "MsgpackFormat"]

MAX_CHUNK_BYTES = 1 << 30
"""``flax.serialization.MAX_CHUNK_SIZE``: an array of more bytes is written in chunks of no more."""
_LARGEST_CHUNK = (1 << 31) - 1
_PROBED = 64 << 10
_MAPS = {bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF)}
"""The first byte of a map: anything else is told at once."""


class MsgpackFormat(Format):
    """What ``flax.serialization`` reads and writes: nested maps of arrays and plain values.

    The keys on the way to an array, joined with ``/``, are its name. A file that is one bare array is
    not read, for it has no name. msgpack has no magic; a file is known by its first array.
    """

    name = "msgpack"
    summary = "flax's msgpack: nested maps of arrays and plain values"
    suffixes = (".msgpack",)
    capabilities = Capabilities(dtypes=frozenset(DType), leaves=True, nesting=True)
    write_options = (
        Option(
            "chunk_bytes",
            int,
            "arrays of more bytes are stored in chunks (the default is flax's own)",
            MAX_CHUNK_BYTES,
        ),
    )

    def open(self, path: Path, options: Mapping[str, Any]) -> Checkpoint:
        from ckptio_msgpack.reading import read_checkpoint

        with open_source(path) as file:
            return read_checkpoint(file)

    def write(self, checkpoint: Checkpoint, out: Output, options: Mapping[str, Any]) -> None:
        from ckptio_msgpack.writing import write_checkpoint

        write_checkpoint(checkpoint, out.create(), options["chunk_bytes"])

    def check(self, checkpoint: Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
        from ckptio_msgpack.checks import content_problems

        problems = capability_problems(self.capabilities, checkpoint.specs.values())
        problems.extend(content_problems(checkpoint))
        chunk_bytes = options["chunk_bytes"]
        if not isinstance(chunk_bytes, int) or not 0 < chunk_bytes <= _LARGEST_CHUNK:
            problems.append(Problem("", f"chunk_bytes={chunk_bytes} is not from 1 to {_LARGEST_CHUNK}"))
        return problems

    def match(self, probe: Probe) -> Match:
        if probe.listing is None and probe.head[:1] in _MAPS:
            for data in (probe.head, probe.read_at(0, _PROBED)):
                reason = _recognise(data, probe.size)
                if reason:
                    return Match(Confidence.SURE, reason)
        if probe.name.endswith(self.suffixes):
            return Match(Confidence.NAME, "the suffix")
        return Match(Confidence.NO, "no map of arrays in msgpack")


def _recognise(data: bytes, size: int) -> str | None:
    """Return why the first bytes of a file of ``size`` bytes are surely a checkpoint, or None."""
    from ckptio_msgpack.walker import Walker

    walker = Walker(_Beginning(data, size))
    try:
        tree = walker.root()
    except CkptError:
        # Damaged or cut off after its first array, it is a checkpoint all the same.
        return "a map with one of flax's arrays in it" if walker.arrays else None
    return "a map, whole and valid" if tree else None


class _Beginning:
    """What a walker needs of a cursor, over no more than the first bytes of a file."""

    def __init__(self, data: bytes, size: int) -> None:
        self.offset = 0
        self._data = data
        self._size = size

    @property
    def left(self) -> int:
        return self._size - self.offset

    def take(self, size: int, what: str) -> bytes:
        self.skip(size, what)
        if self.offset > len(self._data):
            raise self.error(f"{what} is beyond the first {len(self._data)} bytes")
        return self._data[self.offset - size : self.offset]

    def skip(self, size: int, what: str) -> None:
        if size > self.left:
            raise self.error(f"the file ends inside {what}")
        self.offset += size

    def error(self, what: str, offset: int | None = None) -> CorruptCheckpointError:
        return CorruptCheckpointError(what, offset=self.offset if offset is None else offset)
