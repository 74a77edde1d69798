"""The bounds of readers: in force for a ``with``, per thread, and numpy's own bound on shapes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ckptio.limits import Limits, current_limits, raised_limits, shape_problem


def test_the_bounds_of_the_design() -> None:
    assert current_limits() == Limits(
        tensors=1_000_000, header_bytes=256 * 1024 * 1024, dimensions=64, nesting=512
    )


def test_limits_are_raised_inside_the_with_alone() -> None:
    before = current_limits()
    with raised_limits(tensors=5) as outer:
        assert current_limits() is outer
        with raised_limits(nesting=7, dimensions=3, header_bytes=9):
            assert current_limits() == Limits(tensors=5, header_bytes=9, dimensions=3, nesting=7)
        assert current_limits() == outer
    with pytest.raises(KeyError), raised_limits(tensors=6):
        raise KeyError
    assert current_limits() == before


def test_another_thread_keeps_its_own_limits() -> None:
    seen: list[Limits] = []
    with raised_limits(tensors=5):
        thread = threading.Thread(target=lambda: seen.append(current_limits()))
        thread.start()
        thread.join()
    assert seen == [Limits()]


SHAPES = [
    ((), 16),
    ((0,), 8),
    ((2**63 - 1, 0), 1),
    ((0, 2**61 - 1), 4),
    ((2**40, 2**40, 0), 1),
    ((2**31, 2**32, 0), 1),
    ((2**31, 2**31, 0), 2),
    ((2**60, 0), 8),
    ((1,) * 64, 1),
]


@pytest.mark.parametrize(("shape", "itemsize"), SHAPES)
def test_an_empty_shape_is_a_problem_where_numpy_has_none(shape: tuple[int, ...], itemsize: int) -> None:
    """The judge is numpy: it refuses an empty array whose other dimensions are too large."""
    try:
        np.zeros(shape, f"V{itemsize}")
        possible = True
    except ValueError:
        possible = False
    assert (shape_problem(shape, itemsize) is None) is possible


def test_some_of_the_shapes_are_refused() -> None:
    problems = [shape_problem(*each) for each in SHAPES]
    assert 3 <= sum(problem is not None for problem in problems) < len(problems)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((-1,), "negative"),
        ((-1, -1), "negative"),
        ((0, -5), "negative"),
        ((2**33, 2**33), "larger than any array"),
        ((2**63,), "larger than any array"),
        ([2**62, 4], "larger than any array"),
    ],
)
def test_what_is_wrong_with_a_shape_is_said(shape: tuple[int, ...], message: str) -> None:
    assert message in str(shape_problem(shape, 1))
