"""Statistics of single tensors: the edge values of each kind of dtype, by arithmetic."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckptio
from ckptio.elements import ELEMENTS
from ckptio.statistics import Statistics, statistics


def of(array: Any) -> Statistics:
    return statistics(ckptio.MemoryCheckpoint({"x": np.asarray(array)}), "x")


def test_nan_and_inf_are_counted_and_left_out() -> None:
    found = of(np.array([1.0, np.nan, -np.inf, 3.0, np.inf, np.nan], np.float32))
    assert found == Statistics(1.0, 3.0, 2.0, 2, 2)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float64])
def test_narrow_floats_are_widened(dtype: Any) -> None:
    found = of(np.array([0.5, -1.5, np.nan, 4.0, np.inf], np.float32).astype(dtype))
    assert found == Statistics(-1.5, 4.0, 1.0, 1, 1)


def test_nothing_finite() -> None:
    assert of(np.array([np.nan, np.inf], np.float32)) == Statistics(None, None, None, 1, 1)
    assert of(np.empty((0, 3), np.int64)) == Statistics(None, None, None, 0, 0)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8, np.uint32])
def test_integers_are_exact_at_their_ends(dtype: Any) -> None:
    info = np.iinfo(dtype)
    values = [int(info.max), int(info.max), int(info.min), int(info.max) - 1]
    assert of(np.array(values, dtype)) == Statistics(int(info.min), int(info.max), sum(values) / 4, 0, 0)


def test_bools_are_zero_and_one() -> None:
    assert of(np.array([True, False, False, False])) == Statistics(0, 1, 0.25, 0, 0)


def test_complex_numbers_by_their_magnitudes() -> None:
    values = np.array([3 + 4j, 0j, complex(np.nan, 1), complex(np.inf, np.nan)], np.complex128)
    assert of(values) == Statistics(0.0, 5.0, 2.5, 1, 1)


def test_the_mean_of_the_largest_floats_does_not_overflow() -> None:
    largest = np.finfo(np.float64).max
    found = of(np.full(3 * ELEMENTS, largest))
    assert found.mean == pytest.approx(largest, rel=1e-12)


def test_chunks_count_by_their_size() -> None:
    values = np.concatenate([np.zeros(ELEMENTS, np.float32), np.ones(ELEMENTS // 2, np.float32)])
    assert of(values).mean == pytest.approx(1 / 3, rel=1e-15)


def test_memory_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "big.ckpt"
    ckptio.save({"x": np.zeros(12 << 20, np.float32)}, path)  # 48 MiB
    with ckptio.open(path) as checkpoint:
        tracemalloc.start()
        try:
            statistics(checkpoint, "x")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 24 << 20
