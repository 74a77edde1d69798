"""The jobs of `bench_convert` that run in a warm process of ckptio."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import ckptio


def warm_up() -> None:
    """Load every format once, on a model of a few bytes."""
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.ckpt"
        ckptio.save({"a": np.zeros(4, "<f4")}, small)
        ckptio.convert(small, Path(folder) / "small.msgpack", dtype="bf16")


def convert(source: str, target: str, target_format: str, layout: str | None, dtype: str | None) -> None:
    ckptio.convert(source, target, checkpoint_format=target_format, layout=layout, dtype=dtype)


def largest(source: str) -> int:
    """Return the bytes of the largest tensor, quantised ones as they are read."""
    with ckptio.open(source) as checkpoint:
        return max(spec.nbytes for spec in checkpoint.specs.values())
