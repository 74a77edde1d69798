"""Promises about what is not declared: it is refused by name, before anything is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptio import Checkpoint, DType, MemoryCheckpoint, UnsupportedError
from ckptio.format import parse_options
from ckptio.testing.harness import Harness
from ckptio.testing.patterns import bit_patterns

__all__ = ["RefusalPromises"]


class RefusalPromises(Harness):
    """No loss without a word: every offender is listed, and no output is left."""

    @pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.value)
    def test_an_undeclared_dtype_is_refused(self, dtype: DType, tmp_path: Path) -> None:
        if dtype in self.can.dtypes:
            pytest.skip(f"{self.format_name} declares {dtype.value}")
        self.needs_writing()
        made = self.make_checkpoint(self.dtype)
        arrays = {name: np.zeros(spec.shape, dtype.numpy) for name, spec in made.specs.items()}
        checkpoint = MemoryCheckpoint(arrays, aliases=made.aliases, metadata=made.metadata)
        assert dtype.value in self._refused(checkpoint, set(arrays), tmp_path)

    def test_undeclared_0d_tensors_are_refused(self, tmp_path: Path) -> None:
        if self.can.zero_dim:
            pytest.skip(f"{self.format_name} declares 0-d tensors")
        self._refuses_beside_others(np.zeros((), self.dtype.numpy), tmp_path)

    def test_undeclared_empty_tensors_are_refused(self, tmp_path: Path) -> None:
        if self.can.empty:
            pytest.skip(f"{self.format_name} declares empty tensors")
        self._refuses_beside_others(np.zeros((0, 3), self.dtype.numpy), tmp_path)

    def test_tensors_above_the_declared_size_are_refused(self, tmp_path: Path) -> None:
        largest = self.can.max_tensor_bytes
        if largest is None:
            pytest.skip(f"{self.format_name} declares no largest tensor")
        # One element in memory, however many there are.
        count = largest // self.dtype.itemsize + 1
        self._refuses_beside_others(np.broadcast_to(bit_patterns(self.dtype, 1), (count,)), tmp_path)

    def _refuses_beside_others(self, array: np.ndarray[tuple[int, ...], np.dtype], folder: Path) -> None:
        self.needs_writing()
        made = self.make_checkpoint(self.dtype)
        arrays = {name: made.read(name) for name in made.specs} | {"one too many": array}
        checkpoint = MemoryCheckpoint(arrays, aliases=made.aliases, metadata=made.metadata)
        self._refused(checkpoint, {"one too many"}, folder)

    def _refused(self, checkpoint: Checkpoint, offenders: set[str], folder: Path) -> str:
        """Assert that exactly ``offenders`` are listed and nothing is left; return the message."""
        chosen = self.format
        options = parse_options(chosen.write_options, None, owner=chosen.name, flag="-o")
        listed = {problem.where for problem in chosen.check(checkpoint, options)}
        assert offenders <= listed
        assert not (listed & checkpoint.specs.keys()) - offenders
        with pytest.raises(UnsupportedError) as caught:
            self.save(checkpoint, folder / "file")
        assert list(folder.iterdir()) == []
        return str(caught.value)
