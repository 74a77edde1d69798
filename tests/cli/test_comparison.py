"""Comparisons of tensors: what counts as equal, and how far apart they are, by arithmetic."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckptio
from ckptio.comparison import Comparison, compare
from ckptio.distance import Distance
from ckptio.elements import ELEMENTS


def memory(array: Any, **more: Any) -> ckptio.Checkpoint:
    return ckptio.MemoryCheckpoint({"x": np.asarray(array)}, **more)


def both(one: Any, other: Any, **tolerances: float) -> Comparison:
    return compare(memory(one), memory(other), **tolerances)  # type: ignore[arg-type]


def distance(one: Any, other: Any, **tolerances: float) -> Distance:
    (difference,) = both(one, other, **tolerances).tensors
    assert difference.distance is not None
    return difference.distance


def bits(*words: int) -> Any:
    return np.array(words, np.uint32).view(np.float32)


def test_the_largest_differences() -> None:
    found = distance(np.array([1.0, 2.0, 100.0]), np.array([1.0, 3.0, 102.0]))
    assert found == Distance(3, 2, 0, 2.0, 1 / 3)


def test_a_nan_equals_a_nan_of_the_same_bits_only() -> None:
    assert both(bits(0x7FC00000, 0xFFC00001), bits(0x7FC00000, 0xFFC00001)).equal
    assert distance(bits(0x7FC00000), bits(0x7FC00001)) == Distance(1, 1, 1, 0, 0.0)
    assert both(bits(0x7FC00000), bits(0x7FC00001), atol=0).equal


def test_zero_and_minus_zero_differ_in_a_bit_but_not_in_value() -> None:
    assert distance(np.array([0.0]), np.array([-0.0])) == Distance(1, 1, 0, 0.0, 0.0)
    assert both(np.array([0.0]), np.array([-0.0]), rtol=0).equal


def test_a_nan_against_a_number_has_no_distance() -> None:
    found = distance(np.array([np.nan, 1.0]), np.array([1.0, 1.5]), atol=0.1)
    assert found == Distance(2, 2, 1, 0.5, 1 / 3)


@pytest.mark.parametrize("tolerances", [{}, {"atol": 1e300, "rtol": 0.9}])
def test_an_infinity_equals_itself_alone(tolerances: dict[str, float]) -> None:
    assert both(np.array([np.inf, -np.inf]), np.array([np.inf, -np.inf]), **tolerances).equal
    found = distance(np.array([np.inf, 1.0, np.inf]), np.array([1.0, -np.inf, -np.inf]), **tolerances)
    assert found == Distance(3, 3, 0, np.inf, np.inf)


@pytest.mark.parametrize(
    ("tolerances", "equal"),
    [
        ({"atol": 0.5}, True),
        ({"atol": 0.49}, False),
        ({"rtol": 0.2}, True),
        ({"rtol": 0.19}, False),
        ({"atol": 0.25, "rtol": 0.1}, True),
        ({"atol": 0.24, "rtol": 0.1}, False),
    ],
)
def test_tolerances_add_up_and_take_the_larger_magnitude(tolerances: dict[str, float], equal: bool) -> None:
    assert both(np.array([2.0]), np.array([2.5]), **tolerances).equal is equal
    assert both(np.array([-2.5]), np.array([-2.0]), **tolerances).equal is equal


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("which", ["atol", "rtol"])
def test_a_tolerance_is_a_number_from_0_up(which: str, value: float) -> None:
    with pytest.raises(ckptio.OptionError, match=f"--{which}"):
        both(np.ones(1), np.ones(1), **{which: value})


def test_integers_are_compared_exactly() -> None:
    big = 2**63 - 1
    assert distance(np.array([big]), np.array([big - 1])).max_abs == 1
    assert distance(np.array([big]), np.array([-(2**63)])).max_abs == 2**64 - 1
    assert distance(np.array([2**64 - 1], np.uint64), np.array([0], np.uint64)).max_abs == 2**64 - 1
    assert distance(np.array([3, 5], np.int8), np.array([3, -100], np.int8)) == Distance(2, 1, 0, 105, 1.05)
    assert distance(np.array([True, False]), np.array([True, True])) == Distance(2, 1, 0, 1, 1.0)


def test_complex_numbers() -> None:
    assert distance(np.array([3 + 4j, 1j]), np.array([0j, 1j])) == Distance(2, 1, 0, 5.0, 1.0)


@pytest.mark.parametrize("other", [np.float64, ml_dtypes.bfloat16, np.float16, np.int32, np.complex64])
def test_dtypes_are_compared_by_value(other: Any) -> None:
    values = np.array([1.0, -2.0, 64.0], np.float32)
    found = both(values, values.astype(other))
    assert [each.distance for each in found.tensors] == [Distance(3)]
    assert (found.equal, found.same) == (False, 0)
    found = both(values, values.astype(other), atol=0)
    assert (found.equal, found.same, len(found.tensors)) == (True, 1, 1)


def test_rounding_to_bf16_is_seen() -> None:
    # Eight bits of mantissa: 1 + 2**-9 rounds to 1.
    value = np.array([1 + 2**-9], np.float32)
    found = distance(value, value.astype(ml_dtypes.bfloat16))
    assert found == Distance(1, 1, 0, 2**-9, 2**-9 / (1 + 2**-9))


def test_shapes_are_not_compared_by_value() -> None:
    (difference,) = both(np.ones((2, 3)), np.ones((3, 2))).tensors
    assert difference.distance is None
    assert difference.counts


def test_one_element_at_the_end_of_many_chunks() -> None:
    one = np.zeros(2 * ELEMENTS + 3, np.float32)
    other = one.astype(np.float64)
    other[-1] = 0.25
    assert distance(one, other) == Distance(one.size, 1, 0, 0.25, 1.0)


def test_chunks_that_are_cut_in_different_places() -> None:
    class Cut(ckptio.MemoryCheckpoint):
        def chunks(self, name: str, max_bytes: int = 0) -> Any:
            return super().chunks(name, 12)

    values = np.arange(1000, dtype=np.float32)
    assert compare(Cut({"x": values}), memory(values)).equal
    changed = values.copy()
    changed[999] = 0
    (difference,) = compare(memory(values), Cut({"x": changed})).tensors
    assert difference.distance == Distance(1000, 1, 0, 999.0, 1.0)


def test_names_ties_leaves_and_metadata() -> None:
    ones = np.ones(2, np.float32)
    one = ckptio.MemoryCheckpoint(
        {"a": ones, "b": ones},
        aliases={"tied": "a"},
        leaves={"step": 1, "same": float("nan")},
        metadata={"config": {"n": 1, "m": 2}, "llmc": {"v": 3}, "x": None},
    )
    other = ckptio.MemoryCheckpoint(
        {"a": ones, "tied": ones, "c": ones},
        aliases={"c2": "c"},
        leaves={"step": 1.0, "same": float("nan")},
        metadata={"config": {"n": 1, "m": 3}, "msgpack": {}},
    )
    found = compare(one, other, container_keys={"llmc", "msgpack"})
    assert [spec.name for spec in found.only_one] == ["b"]
    assert [spec.name for spec in found.only_other] == ["c", "c2"]
    assert (found.same, found.tensors) == (2, ())
    assert (found.ties_only_one, found.ties_only_other) == ((("a", "tied"),), (("c", "c2"),))
    assert [(each.key, each.one, each.other) for each in found.leaves] == [("step", "1", "1.0")]
    assert [(e.key, e.one, e.other) for e in found.metadata] == [("config.m", "2", "3"), ("x", "null", None)]
    assert [(e.key, e.one, e.other) for e in found.container] == [
        ("llmc.v", "3", None),
        ("msgpack", None, "{}"),
    ]
    assert not found.equal


def test_a_tie_is_one_whichever_name_is_stored() -> None:
    ones = np.ones(2, np.float32)
    one = ckptio.MemoryCheckpoint({"a": ones}, aliases={"b": "a"})
    other = ckptio.MemoryCheckpoint({"b": ones}, aliases={"a": "b"})
    found = compare(one, other)
    assert (found.equal, found.same) == (True, 2)


@pytest.mark.parametrize(
    "more",
    [{"leaves": {"a": 1}}, {"metadata": {"a": 1}}, {"aliases": {"y": "x"}}],
    ids=lambda more: next(iter(more)),
)
def test_each_part_alone_makes_them_different(more: dict[str, Any]) -> None:
    assert not compare(memory([1.0]), memory([1.0], **more)).equal
    assert compare(memory([1.0], **more), memory([1.0], **more)).equal


def test_memory_is_bounded() -> None:
    one = np.zeros(8 << 20, np.float32)  # 32 MiB
    other = np.ones(8 << 20, np.float32)
    tracemalloc.start()
    try:
        assert distance(one, other).differing == one.size
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20
