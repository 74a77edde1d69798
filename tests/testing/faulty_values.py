"""Formats that each break one promise about declarations, values and refusals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from ckptio import Checkpoint, DType, FileCheckpoint, Option, Problem, SourceFile
from ckptio.adapters import Annotated
from ckptio.checkpoint import CHUNK_BYTES, Sink
from ckptio.files import read_chunks
from testing.faults import breaks
from testing.sound_formats import Modest, Sound


class NoSpans(FileCheckpoint):
    """A reader that gives chunks alone."""

    def spans(self, name: str) -> None:  # type: ignore[override]
        return None

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        return read_chunks(super().spans(name), max_bytes, self.specs[name].dtype.itemsize)


@breaks("its_declarations_are_well_formed")
class SuffixWithoutDot(Sound):
    suffixes: ClassVar[tuple[str, ...]] = ("suffix",)


@breaks("its_declarations_are_well_formed")
class ChoiceThatItsTypeRefuses(Sound):
    write_options: ClassVar[tuple[Option, ...]] = (Option("level", int, "how much", choices=("low", "high")),)


@breaks("a_round_trip_is_bit_exact")
class FlushesSubnormals(Sound):
    def copy(self, checkpoint: Checkpoint, name: str, file: Sink) -> None:
        if checkpoint.specs[name].dtype is not DType.BF16:
            checkpoint.copy_to(name, file)
            return
        words = checkpoint.read(name).reshape(-1).view(np.uint16)
        file.write(np.where(words & 0x7F80, words, words & 0x8000).astype(np.uint16).tobytes())


@breaks("a_round_trip_is_bit_exact")
class LosesTheEndOfLongTensors(Sound):
    def copy(self, checkpoint: Checkpoint, name: str, file: Sink) -> None:
        if checkpoint.specs[name].nbytes <= CHUNK_BYTES:
            checkpoint.copy_to(name, file)
            return
        data = checkpoint.read(name).tobytes()
        file.write(data[:-1] + bytes([data[-1] ^ 1]))


@breaks("samples_read_as_their_truth")
class WrongBothWays(Sound):
    """Reader and writer turn every bit over: they agree with one another, and with nobody else."""

    class Reader(NoSpans):
        def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
            return map(_inverted, super().chunks(name, max_bytes))

    reader = Reader

    def copy(self, checkpoint: Checkpoint, name: str, file: Sink) -> None:
        for chunk in checkpoint.chunks(name):
            file.write(_inverted(chunk))


def _inverted(chunk: memoryview) -> memoryview:
    return (~np.frombuffer(chunk, np.uint8)).data


@breaks("a_checkpoint_without_tensors_is_kept")
class NeedsATensor(Sound):
    def parse(self, file: SourceFile) -> Checkpoint:
        found = super().parse(file)
        return found if found.specs else self.refuse(file)

    def refuse(self, file: SourceFile) -> Checkpoint:
        raise file.cut_short(0, file.size + 1)


@breaks("equal_tensors_are_no_tie")
class TiesWhatIsEqual(Sound):
    """It stores each content once."""

    def parse(self, file: SourceFile) -> Checkpoint:
        found = super().parse(file)
        seen: dict[Any, str] = {}
        aliases = dict(found.aliases)
        for name, spec in found.specs.items():
            first = seen.setdefault((spec.dtype, spec.shape, found.digest(name)), name)
            if first != name:
                aliases[name] = first
        return Annotated(found, aliases=aliases)


@breaks("there_and_back_by_way_of_memory")
class BelievesItsOldNotes(Sound):
    """The reader notes the order of its file, and the writer puts the data in an order that is noted."""

    def parse(self, file: SourceFile) -> Checkpoint:
        found = super().parse(file)
        return Annotated(found, metadata={**found.metadata, self.name: sorted(found.specs)})

    def order(self, checkpoint: Checkpoint) -> Iterable[str]:
        noted = checkpoint.metadata.get(self.name)
        return noted if isinstance(noted, list) else super().order(checkpoint)


@breaks("there_and_back_by_way_of_msgpack")
class CopiesFromTheStart(Sound):
    """It takes every piece of a file to begin where the file does."""

    def copy(self, checkpoint: Checkpoint, name: str, file: Sink) -> None:
        spans = checkpoint.spans(name)
        if spans is None:
            checkpoint.copy_to(name, file)
            return
        for span in spans:
            file.write(span.file.read_at(0, span.length))


class _Lenient(Modest):
    """It finds nothing wrong with one kind of thing that it does not declare."""

    overlooked = ""

    def check(self, checkpoint: Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
        return [each for each in super().check(checkpoint, options) if self.overlooked not in each.what]


@breaks("an_undeclared_dtype_is_refused")
class TakesEveryDtype(_Lenient):
    overlooked = "dtype"


@breaks("an_undeclared_dtype_is_refused")
class ListsTheFirstDtypeOnly(Modest):
    def check(self, checkpoint: Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
        return super().check(checkpoint, options)[:1]


@breaks("undeclared_0d_tensors_are_refused")
class TakesScalars(_Lenient):
    overlooked = "0-d"


@breaks("undeclared_empty_tensors_are_refused")
class TakesEmptyTensors(_Lenient):
    overlooked = "empty"


@breaks("tensors_above_the_declared_size_are_refused")
class TakesLargeTensors(_Lenient):
    overlooked = "largest"
