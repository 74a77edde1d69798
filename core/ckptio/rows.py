"""Checkpoints over checkpoints that take or join whole rows, so that the kernel still does the copying."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from ckptio.adapters import Adapter, select
from ckptio.checkpoint import CHUNK_BYTES, Checkpoint, Span, TensorSpec
from ckptio.files import read_chunks

__all__ = ["Concatenated", "Sliced"]


class Sliced(Adapter):
    """Whole rows (``start`` to ``stop`` of dimension 0) of some tensors: ``rows`` by name."""

    def __init__(self, base: Checkpoint, rows: Mapping[str, tuple[int, int]]) -> None:
        super().__init__(base)
        self._rows = rows
        self._specs = dict(base.specs)
        for name, (start, stop) in rows.items():
            spec = base.specs[name]
            if not spec.shape or not 0 <= start <= stop <= spec.shape[0]:
                raise ValueError(f"{name}: no rows {start} to {stop} in shape {spec.shape}")
            self._specs[name] = dataclasses.replace(spec, shape=(stop - start, *spec.shape[1:]))

    def spans(self, name: str) -> Sequence[Span] | None:
        spans = self.base.spans(name)
        if spans is None or name not in self._rows:
            return spans
        begin, end = self._bytes(name)
        pieces, position = [], 0
        for span in spans:
            first, last = max(begin, position), min(end, position + span.length)
            if first < last:
                pieces.append(Span(span.file, span.offset + first - position, last - first))
            position += span.length
        return pieces

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        if name not in self._rows:
            yield from self.base.chunks(name, max_bytes)
            return
        spans = self.spans(name)
        if spans is not None:
            yield from read_chunks(spans, max_bytes, self._specs[name].dtype.itemsize)
            return
        begin, end = self._bytes(name)
        position = 0
        for chunk in self.base.chunks(name, max_bytes):
            part = chunk[max(0, begin - position) : max(0, end - position)]
            position += len(chunk)
            if len(part):
                yield part
            if position >= end:
                return

    def _bytes(self, name: str) -> tuple[int, int]:
        spec = self.base.specs[name]
        row = math.prod(spec.shape[1:]) * spec.dtype.itemsize
        start, stop = self._rows[name]
        return start * row, stop * row


class Concatenated(Adapter):
    """New tensors made of others, joined by rows: ``parts`` maps each new name to its parts, in order.

    The parts themselves are no longer there; an alias of one stands in for it. ValueError when their
    dtypes or row shapes differ, or a new name is taken.
    """

    def __init__(self, base: Checkpoint, parts: Mapping[str, Sequence[str]]) -> None:
        super().__init__(base)
        self._parts = parts
        used = {name for names in parts.values() for name in names}
        self._rest = select(base, [name for name in base.names() if name not in used])
        self._specs = dict(self._rest.specs)
        for new, names in parts.items():
            if new in self._rest:
                raise ValueError(f"{new}: there is a tensor of this name already")
            specs = [base.specs[name] for name in names]
            if len({(spec.dtype, spec.shape[1:]) for spec in specs}) != 1 or not all(s.shape for s in specs):
                raise ValueError(f"{new}: the parts do not fit: {', '.join(str(s.shape) for s in specs)}")
            rows = sum(spec.shape[0] for spec in specs)
            self._specs[new] = TensorSpec(new, specs[0].dtype, (rows, *specs[0].shape[1:]))

    @property
    def aliases(self) -> Mapping[str, str]:
        return self._rest.aliases

    def spans(self, name: str) -> Sequence[Span] | None:
        if name not in self._parts:
            return self._rest.spans(name)
        pieces: list[Span] = []
        for part in self._parts[name]:
            spans = self.base.spans(part)
            if spans is None:
                return None
            pieces.extend(spans)
        return pieces

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        if name not in self._parts:
            yield from self._rest.chunks(name, max_bytes)
        for part in self._parts.get(name, ()):
            yield from self.base.chunks(part, max_bytes)
