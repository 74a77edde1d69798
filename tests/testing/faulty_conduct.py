"""Formats that each break one promise about reading in pieces, damage, and conduct."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ckptio import Checkpoint, Cursor, FileCheckpoint, Output, SourceFile, Span, TensorSpec
from ckptio.checkpoint import CHUNK_BYTES
from ckptio.files import read_chunks
from testing.faults import breaks
from testing.faulty_values import NoSpans
from testing.sound_formats import Sound


@breaks("chunks_obey_max_bytes")
class GivesWholeTensors(Sound):
    class Reader(FileCheckpoint):
        def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
            return super().chunks(name, max(1, self.specs[name].nbytes))

    reader = Reader


@breaks("chunks_obey_max_bytes")
class CutsElements(Sound):
    class Reader(FileCheckpoint):
        def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
            return read_chunks(self.spans(name), max_bytes, 1)

    reader = Reader


@breaks("chunks_can_be_read_again_and_interleaved")
class HasOnePosition(Sound):
    """All readers of a tensor in one thread move one position."""

    class Reader(NoSpans):
        def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
            positions = vars(self).setdefault("positions", Counter())
            place = (name, threading.get_ident())
            positions[place] = 0
            whole = b"".join(super().chunks(name, CHUNK_BYTES))
            step = max(1, max_bytes // self.specs[name].dtype.itemsize) * self.specs[name].dtype.itemsize
            while positions[place] < len(whole):
                start = positions[place]
                positions[place] += step
                yield memoryview(whole)[start : start + step]

    reader = Reader


@breaks("chunks_can_be_read_from_two_threads")
class BelongsToOneThread(Sound):
    class Reader(FileCheckpoint):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.owner = threading.get_ident()

        def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
            if threading.get_ident() != self.owner:
                raise RuntimeError("used in another thread")
            return super().chunks(name, max_bytes)

    reader = Reader


@breaks(
    "spans_hold_the_bytes_of_the_chunks",
    "a_round_trip_is_bit_exact",
    "samples_read_as_their_truth",
    "there_and_back_by_way_of_memory",
    "there_and_back_by_way_of_msgpack",
)
class PointsBesideItsTensors(Sound):
    class Reader(NoSpans):
        def spans(self, name: str) -> Any:
            spec = self.specs[name]
            return [Span(self.file, self._offsets[name] - 1, spec.nbytes)]

        def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
            spec = self.specs[name]
            return read_chunks(FileCheckpoint.spans(self, name), max_bytes, spec.dtype.itemsize)

    reader = Reader


@breaks("writing_and_streaming_stay_within_a_memory_bound")
class ReadsAllAtOnce(Sound):
    def parse(self, file: SourceFile) -> Checkpoint:
        file.read_at(0, file.size)
        return super().parse(file)


@breaks("writing_and_streaming_stay_within_a_memory_bound")
class WritesAllAtOnce(Sound):
    def copy(self, checkpoint: Checkpoint, name: str, file: Any) -> None:
        file.write(checkpoint.read(name).tobytes())


@breaks("a_cut_file_is_refused_or_read_right")
class FillsUpWithZeros(Sound):
    class Reader(NoSpans):
        def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
            nbytes, offset = self.specs[name].nbytes, self._offsets[name]
            there = max(0, min(nbytes, self.file.size - offset))
            data = self.file.read_at(offset, there) + bytes(nbytes - there)
            step = max(1, max_bytes // self.specs[name].dtype.itemsize) * self.specs[name].dtype.itemsize
            return (memoryview(data)[start : start + step] for start in range(0, nbytes, step))

    reader = Reader

    def skip(self, cursor: Cursor, spec: TensorSpec) -> None:
        cursor.offset += min(spec.nbytes, cursor.left)


@breaks("a_cut_file_is_refused_or_read_right")
class TakesWhatIsLeft(Sound):
    """A length that is more than there is raises what `struct` raises."""

    def skip(self, cursor: Cursor, spec: TensorSpec) -> None:
        if spec.nbytes > cursor.left:
            raise IndexError("out of range")
        super().skip(cursor, spec)


class _BadJson(Sound):
    """What it does when the header is not JSON."""

    def parse_header(self, text: bytes, path: Path) -> dict[str, Any]:
        try:
            return super().parse_header(text, path)
        except ValueError:
            self.despair(text)
            raise

    def despair(self, text: bytes) -> None: ...


@breaks("a_flipped_bit_is_refused_or_read_right")
class LetsJsonRaise(_BadJson):
    def despair(self, text: bytes) -> None:
        json.loads(text + b"x")


@breaks("a_flipped_bit_is_refused_or_read_right")
class LoopsForEver(_BadJson):
    def despair(self, text: bytes) -> None:
        with contextlib.suppress(Exception):
            while True:
                pass


@breaks("a_flipped_bit_is_refused_or_read_right")
class TakesTooMuchMemory(_BadJson):
    def despair(self, text: bytes) -> None:
        bytes(100 << 20)


@breaks("writing_twice_gives_the_same_bytes")
class WritesARandomNumber(Sound):
    def header(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return {**super().header(checkpoint), "id": uuid.uuid4().hex}


@breaks("nothing_is_written_outside_its_output")
class KeepsALog(Sound):
    """It writes into the working directory whenever it opens a file."""

    def parse(self, file: SourceFile) -> Checkpoint:
        with contextlib.suppress(OSError):
            Path("opened.log").write_text(str(file.path))
        return super().parse(file)


@breaks("nothing_is_written_outside_its_output")
class LeavesALock(Sound):
    def write(self, checkpoint: Checkpoint, out: Output, options: Any) -> None:
        if out.target.parent.name == "target":
            out.target.with_name("lock").touch()
        super().write(checkpoint, out, options)


@breaks("a_name_never_leads_outside")
class MakesAFileOfEachName(Sound):
    def write(self, checkpoint: Checkpoint, out: Output, options: Any) -> None:
        for name in checkpoint.specs:
            if name.startswith("../"):
                (out.target.parent / name).touch()
        super().write(checkpoint, out, options)


@breaks("handles_are_closed")
class LeavesABadFileOpen(Sound):
    def open(self, path: Path, options: Any) -> Checkpoint:
        return self.parse(SourceFile(path))


@breaks("use_after_close_is_a_clear_error")
class LivesOnAfterClose(Sound):
    """It opens its file anew for each reading, and closing it does nothing."""

    class Reader(NoSpans):
        def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
            spec = self.specs[name]
            with contextlib.closing(SourceFile(self.file.path)) as file:
                yield from read_chunks(
                    [Span(file, self._offsets[name], spec.nbytes)], max_bytes, spec.dtype.itemsize
                )

    reader = Reader
