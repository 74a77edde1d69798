"""Promises about tensors: every bit of every element comes back, by every way that there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptio
from ckptio import Checkpoint, DType, MemoryCheckpoint
from ckptio.checkpoint import CHUNK_BYTES
from ckptio.leaves import same_leaf
from ckptio.testing.harness import Harness, fingerprint, fingerprints
from ckptio.testing.patterns import bit_patterns

__all__ = ["ValuePromises"]


class ValuePromises(Harness):
    """What was written is what is read, to the last bit."""

    @pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.value)
    def test_a_round_trip_is_bit_exact(self, dtype: DType, tmp_path: Path) -> None:
        """Shapes (), (0,), (0, 3), 1-D, 3-D and more than one chunk; every telling bit pattern."""
        if dtype not in self.can.dtypes:
            pytest.skip(f"{self.format_name} does not declare {dtype.value}")
        made = self.make_checkpoint(dtype)
        arrays = {name: made.read(name) for name in made.specs}
        assert dtype in {spec.dtype for spec in made.specs.values()}, "make_checkpoint() ignored the dtype"
        if self.can.layout is None:
            most = (self.can.max_tensor_bytes or 2 * CHUNK_BYTES) // dtype.itemsize
            arrays["every pattern"] = bit_patterns(dtype)[:most]
            arrays["more than a chunk"] = bit_patterns(dtype, min(most, CHUNK_BYTES // dtype.itemsize + 3))
        checkpoint = MemoryCheckpoint(arrays, aliases=made.aliases, metadata=made.metadata)
        expected = {name: fingerprint(checkpoint.read(name)) for name in checkpoint.names()}
        self.save(checkpoint, tmp_path / "file")
        with self.opened(tmp_path / "file") as read:
            assert fingerprints(read) == expected
            assert {name: fingerprint(read.read(name)) for name in read.names()} == expected
            assert {name: fingerprint(read.read(name, mmap=True)) for name in read.names()} == expected

    def test_samples_read_as_their_truth(self) -> None:
        """The oracle from outside: files of the real program, and what its own library says of them."""
        for sample in self.samples():
            with self.opened(sample.path, sample.options) as checkpoint:
                found = fingerprints(checkpoint)
                assert found == dict(sample.tensors), str(sample.path)
                assert {name: fingerprint(checkpoint.read(name)) for name in found} == found

    def test_a_checkpoint_without_tensors_is_kept(self, tmp_path: Path) -> None:
        self.needs_free_names()
        self.save(MemoryCheckpoint({}, metadata={"note": "empty"}), tmp_path / "file")
        with self.opened(tmp_path / "file") as read:
            assert read.names() == []
            assert read.metadata["note"] == "empty"

    def test_equal_tensors_are_no_tie(self, tmp_path: Path) -> None:
        self.needs_free_names()
        array = bit_patterns(self.dtype, 8)
        arrays = {"one": array, "other": array.copy()}
        if self.can.empty:
            arrays |= {"nothing": array[:0].copy(), "nothing too": array[:0].copy()}
        self.save(MemoryCheckpoint(arrays), tmp_path / "file")
        with self.opened(tmp_path / "file") as read:
            assert not read.aliases
            assert set(read.specs) == set(arrays)

    def test_there_and_back_by_way_of_memory(self, tmp_path: Path) -> None:
        file = self.a_file(tmp_path)
        self.needs_writing()
        with self.opened(file.path, file.options) as first:
            self.save(_in_memory(first), tmp_path / "again")
            with self.opened(tmp_path / "again") as second:
                _assert_alike(first, second, {self.format_name})

    def test_there_and_back_by_way_of_msgpack(self, tmp_path: Path) -> None:
        file = self.a_file(tmp_path)
        self.needs_writing()
        ckptio.convert(
            file.path,
            tmp_path / "between",
            source_format=self.format_name,
            source_options=file.options,
            checkpoint_format="msgpack",
        )
        ckptio.convert(
            tmp_path / "between",
            tmp_path / "again",
            source_format="msgpack",
            checkpoint_format=self.format_name,
        )
        with self.opened(file.path, file.options) as first, self.opened(tmp_path / "again") as second:
            _assert_alike(first, second, {self.format_name, "msgpack"})


def _in_memory(checkpoint: Checkpoint) -> MemoryCheckpoint:
    return MemoryCheckpoint(
        {name: np.array(checkpoint.read(name)) for name in checkpoint.specs},
        aliases=checkpoint.aliases,
        leaves=checkpoint.leaves,
        metadata=checkpoint.metadata,
    )


def _assert_alike(one: Checkpoint, other: Checkpoint, formats: set[str]) -> None:
    """Compare everything but what a reader of one of ``formats`` notes on its own container."""
    assert fingerprints(one) == fingerprints(other)
    assert dict(one.aliases) == dict(other.aliases)
    assert one.leaves.keys() == other.leaves.keys()
    for path, leaf in one.leaves.items():
        assert same_leaf(leaf, other.leaves[path]), path
    first, second = (
        {key: value for key, value in each.metadata.items() if key not in formats} for each in (one, other)
    )
    assert first == second
