"""Promises about bulk data: chunks in bounds, again and again, from several threads, in little memory."""

from __future__ import annotations

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptio import Span
from ckptio.checkpoint import CHUNK_BYTES
from ckptio.testing.bounds import memory_bound
from ckptio.testing.harness import Harness, fingerprint, fingerprint_of, fingerprints
from ckptio.testing.patterns import bit_patterns

__all__ = ["StreamingPromises"]

_LARGE = 40 << 20
_BOUND = 20 << 20
"""Bytes of one tensor, and of the memory in which it is written and read: five default chunks."""
_SMALL_CHUNK = 24


class StreamingPromises(Harness):
    """A tensor is read in pieces, and whoever reads it decides how large they are."""

    def test_chunks_obey_max_bytes(self, tmp_path: Path) -> None:
        file = self.a_file(tmp_path)
        with self.opened(file.path, file.options) as checkpoint:
            for name, spec in checkpoint.specs.items():
                for max_bytes in (1, _SMALL_CHUNK, 4096, CHUNK_BYTES):
                    chunks = [bytes(chunk) for chunk in checkpoint.chunks(name, max_bytes)]
                    assert all(len(chunk) <= max(max_bytes, spec.dtype.itemsize) for chunk in chunks)
                    assert all(len(chunk) % spec.dtype.itemsize == 0 for chunk in chunks)
                    assert sum(map(len, chunks)) == spec.nbytes
                    assert fingerprint_of(spec, b"".join(chunks)) == file.tensors[name]

    def test_chunks_can_be_read_again_and_interleaved(self, tmp_path: Path) -> None:
        file = self.a_file(tmp_path)
        with self.opened(file.path, file.options) as checkpoint:
            truth = {name: b"".join(checkpoint.chunks(name)) for name in checkpoint.specs}
            readers = [(name, checkpoint.chunks(name, _SMALL_CHUNK)) for name in [*truth, *truth]]
            pieces: list[list[bytes]] = [[] for _ in readers]
            for turn in itertools.zip_longest(*(chunks for _, chunks in readers), fillvalue=b""):
                for piece, chunk in zip(pieces, turn, strict=True):
                    piece.append(bytes(chunk))
            for (name, _), piece in zip(readers, pieces, strict=True):
                assert b"".join(piece) == truth[name]
            assert fingerprints(checkpoint) == dict(file.tensors)

    def test_chunks_can_be_read_from_two_threads(self, tmp_path: Path) -> None:
        file = self.a_file(tmp_path)
        together = threading.Barrier(2)
        with self.opened(file.path, file.options) as checkpoint, ThreadPoolExecutor(2) as threads:

            def read_all() -> list[dict[str, str]]:
                together.wait(timeout=60)
                return [fingerprints(checkpoint) for _ in range(20)]

            for done in [threads.submit(read_all) for _ in range(2)]:
                assert done.result() == 20 * [dict(file.tensors)]

    def test_spans_hold_the_bytes_of_the_chunks(self, tmp_path: Path) -> None:
        """Where there are spans; they are read here by the system's own call."""
        file = self.a_file(tmp_path)
        with self.opened(file.path, file.options) as checkpoint:
            for name, spec in checkpoint.specs.items():
                spans = checkpoint.spans(name)
                if spans is not None:
                    data = [os.pread(span.file.fileno(), span.length, span.offset) for span in spans]
                    assert b"".join(data) == b"".join(checkpoint.chunks(name))
                    assert sum(span.length for span in spans) == spec.nbytes

    def test_writing_and_streaming_stay_within_a_memory_bound(self, tmp_path: Path) -> None:
        """A tensor of 40 MiB is written, opened and streamed in 20 MiB."""
        self.needs_free_names()
        if (self.can.max_tensor_bytes or _LARGE) < _LARGE:
            pytest.skip(f"{self.format_name} declares a largest tensor of {self.can.max_tensor_bytes} bytes")
        array = bit_patterns(self.dtype, _LARGE // self.dtype.itemsize)
        truth = fingerprint(array)
        with memory_bound(_BOUND, "writing"):
            self.save_arrays({"large": array}, tmp_path / "file")
        with memory_bound(_BOUND, "opening"):
            checkpoint = self.opened(tmp_path / "file")
        with checkpoint:
            with memory_bound(_BOUND, "streaming"):
                assert sum(len(chunk) for chunk in checkpoint.chunks("large")) == array.nbytes
            with memory_bound(_BOUND, "copying"):
                checkpoint.copy_to("large", _Nowhere())
            assert fingerprints(checkpoint) == {"large": truth}


class _Nowhere:
    """A sink that drops what it is given, and reads what it is to copy."""

    def write(self, data: bytes | memoryview) -> None:
        pass

    def copy(self, span: Span) -> None:
        assert span.file.fileno() >= 0
