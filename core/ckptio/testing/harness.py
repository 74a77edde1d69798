"""What the promises stand on: the format under test, its files, and truths that bypass it.

A truth is a `fingerprint` of an array that the kit made by arithmetic, or that an author took from the
format's own library. Nothing that the format under test computed is ever a truth.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

import ckptio
from ckptio import Capabilities, Checkpoint, DType, Format, TensorSpec
from ckptio.adapters import Annotated
from ckptio.format import parse_options
from ckptio.registry import missing_dependency, registry
from ckptio.testing.patterns import small_checkpoint, tiny_gpt2

__all__ = ["LEAVES", "METADATA", "Harness", "Sample", "fingerprint", "fingerprint_of", "fingerprints"]

LEAVES: Mapping[str, Any] = {
    "epoch": 3,
    "schedule/rate": 0.1,
    "schedule/best": -0.0,
    "schedule/worst": float("inf"),
    "schedule/unknown": float("nan"),
    "nothing": None,
    "on": True,
    "root": 1 - 2j,
    "author": "Gödel",
    "key": b"\x00\xff",
    "empty": {},
    "list": [1, [2.5, None], "x", False],
}
METADATA: Mapping[str, Any] = {"note": "Gödel: 1/2 ~", "config": {"n_head": 1}}


@dataclass(frozen=True)
class Sample:
    """A file (or directory) and its truth: the `fingerprint` of every tensor in it, aliases included."""

    path: Path
    tensors: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)


def fingerprint(array: npt.NDArray[Any] | np.generic) -> str:
    """Return dtype, shape and SHA-256 of the elements (little-endian, C order), as one string.

    A NaN's payload, the sign of a zero and the difference of ``()`` and ``(1,)`` all tell.
    """
    whole = np.asarray(array)
    dtype = DType.of(whole.dtype)
    data = np.ascontiguousarray(whole, dtype.numpy).tobytes()
    return fingerprint_of(TensorSpec("", dtype, whole.shape), data)


def fingerprint_of(spec: TensorSpec, data: bytes) -> str:
    """Return the `fingerprint` of the array that has these bytes."""
    return f"{spec.dtype.value} {spec.shape} {hashlib.sha256(data).hexdigest()}"


def fingerprints(checkpoint: Checkpoint) -> dict[str, str]:
    """Return what a checkpoint gives by its chunks and says in its specs, in its own order."""
    found = {}
    for name in checkpoint.names():
        spec = checkpoint.specs[checkpoint.canonical(name)]
        found[name] = fingerprint_of(spec, b"".join(checkpoint.chunks(spec.name)))
    return found


class Harness:
    """The format under test; ``format_name`` is all that an author has to say."""

    format_name: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    """Options of the writer, where other ones than the defaults are to be tested too."""

    def make_checkpoint(self, dtype: DType) -> Checkpoint:
        """Return a small checkpoint that the format can hold with tensors of ``dtype``.

        The default has tensors of every kind of shape that is declared; where the format is bound to
        a layout of ``ckptio.models``, it is a tiny GPT-2.
        """
        if self.can.layout is not None:
            return tiny_gpt2(dtype)
        return small_checkpoint(dtype, zero_dim=self.can.zero_dim, empty=self.can.empty)

    def samples(self) -> Iterable[Sample]:
        """Return files that the real program wrote, with truths from elsewhere; none by default."""
        return ()

    @property
    def format(self) -> Format:
        """The format, loaded as ckptio loads it; skips the test when its optional dependency is missing."""
        found = registry().load(self.format_name)
        missing = missing_dependency(found)
        if missing is not None:
            pytest.skip(f"{self.format_name} {missing}")
        return found

    @property
    def can(self) -> Capabilities:
        return self.format.capabilities

    @property
    def dtype(self) -> DType:
        """A declared dtype for tests that need only one: f32 where there is a choice."""
        return DType.F32 if DType.F32 in self.can.dtypes else min(self.can.dtypes, key=list(DType).index)

    def needs_writing(self) -> None:
        """Skip the test when the format declares that it is read only."""
        if not self.can.writes:
            pytest.skip(f"{self.format_name} declares that it is read only")

    def needs_free_names(self) -> None:
        """Skip the test when the format declares that it takes no names but a layout's."""
        self.needs_writing()
        if self.can.layout is not None:
            pytest.skip(f"{self.format_name} declares that it holds the layout {self.can.layout!r} only")

    def save_arrays(self, arrays: Mapping[str, npt.NDArray[Any]], path: Path, **beside: Any) -> None:
        """Write through all of ckptio: checked, written aside, read back, published with its sidecar."""
        self.needs_writing()
        ckptio.save(arrays, path, checkpoint_format=self.format_name, options=self.options, **beside)

    def save(self, checkpoint: Checkpoint, path: Path) -> None:
        """Write all of a small checkpoint."""
        arrays = {name: checkpoint.read(name) for name in checkpoint.specs}
        beside = {"aliases": checkpoint.aliases, "leaves": checkpoint.leaves, "metadata": checkpoint.metadata}
        self.save_arrays(arrays, path, **beside)

    def opened(self, path: Path, options: Mapping[str, Any] | None = None) -> Checkpoint:
        """Open as ckptio opens, with what the sidecar records."""
        return ckptio.open(path, checkpoint_format=self.format_name, options=options)

    def opened_alone(self, path: Path, options: Mapping[str, Any] | None = None) -> Checkpoint:
        """Open by the format's own `open`: what the file says by itself."""
        chosen = self.format
        return chosen.open(path, parse_options(chosen.read_options, options, owner=chosen.name, flag="-O"))

    def rich_checkpoint(self) -> Checkpoint:
        """Return `make_checkpoint` with a tie, leaves and metadata."""
        base = self.make_checkpoint(self.dtype)
        aliases = base.aliases or ({} if self.can.layout else {"tie": next(iter(base.specs))})
        return Annotated(base, aliases=aliases, leaves=LEAVES, metadata={**METADATA, **base.metadata})

    def a_file(self, folder: Path) -> Sample:
        """Return a file in ``folder`` with its truth: one written now, or a sample of a read-only format."""
        path = folder / "checkpoint"
        if self.can.writes:
            checkpoint = self.rich_checkpoint()
            self.save(checkpoint, path)
            return Sample(path, {name: fingerprint(checkpoint.read(name)) for name in checkpoint.names()})
        sample = next(iter(self.samples()), None)
        assert sample is not None, f"{self.format_name} is read only: samples() must return a file"
        if sample.path.is_dir():
            shutil.copytree(sample.path, path)
        else:
            shutil.copyfile(sample.path, path)
        return Sample(path, sample.tensors, sample.options)
