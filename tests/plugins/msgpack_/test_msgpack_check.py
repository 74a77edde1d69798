"""What msgpack cannot hold is said before anything is written, all of it at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckptio import DType, MemoryCheckpoint, TensorSpec
from ckptio_msgpack.format import MsgpackFormat

FORMAT = MsgpackFormat()
OPTIONS = {"chunk_bytes": 2**30}


def nested_list(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        (2**64, "integer of 65 bits"),
        ([0, [-(2**63) - 1]], "integer of 64 bits"),
        ("\ud800", "not valid Unicode"),
        ({"key": 1}, "not empty"),
        (np.zeros(2), "ndarray"),
        ((np.int64(3),), "int64"),
        (nested_list(600), "nested more than 500"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_leaf_that_cannot_be_written_is_named(leaf: Any, reason: str) -> None:
    (problem,) = FORMAT.check(MemoryCheckpoint({"w": np.zeros(1)}, leaves={"some/leaf": leaf}), OPTIONS)
    assert problem.where == "some/leaf"
    assert reason in problem.what
    assert problem.allow is None


def test_lists_below_deep_maps_count_from_the_root() -> None:
    path = "/".join("k" * 400)
    assert FORMAT.check(MemoryCheckpoint({}, leaves={path: nested_list(112)}), OPTIONS) == []
    (problem,) = FORMAT.check(MemoryCheckpoint({}, leaves={path: nested_list(113)}), OPTIONS)
    assert "nested more than 512" in problem.what


def test_names_that_are_marks_or_no_text_are_refused_together() -> None:
    arrays = {
        name: np.zeros(1) for name in ("__ckptio_flat__", "a/__msgpack_chunked_array__", "\udc80", "fine")
    }
    checkpoint = MemoryCheckpoint(arrays, aliases={"__msgpack_chunked_array__/b": "fine"}, leaves={"fine": 1})
    found = {problem.where for problem in FORMAT.check(checkpoint, OPTIONS)}
    assert found == {*arrays, "__msgpack_chunked_array__/b"}


class InList(MemoryCheckpoint):
    """A tensor of ``size`` bytes that is the one element of a list."""

    def __init__(self, size: int) -> None:
        super().__init__({}, metadata={"msgpack": {"lists": {"a": 1}}})
        self._specs = {"a/0": TensorSpec("a/0", DType.U8, (size,))}


def test_an_array_in_a_list_ends_at_4_gib() -> None:
    # 93, 91 ce + 4 bytes of shape, a5 "uint8", c6 + 4 bytes of length: 18 bytes before the elements.
    assert FORMAT.check(InList(2**32 - 1 - 18), OPTIONS) == []
    for size in (2**32 - 18, 2**33):
        (problem,) = FORMAT.check(InList(size), OPTIONS)
        assert problem.where == "a/0"
        assert "list" in problem.what


@pytest.mark.parametrize("chunk_bytes", [0, -1, 2**31, 1.5, None])
def test_a_chunk_size_that_cannot_be_is_refused(chunk_bytes: Any) -> None:
    (problem,) = FORMAT.check(MemoryCheckpoint({}), {"chunk_bytes": chunk_bytes})
    assert "chunk_bytes" in problem.what
