"""Checkpoints over checkpoints that change tensors, over memory and over a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ckptio import (
    Checkpoint,
    DType,
    FileCheckpoint,
    MemoryCheckpoint,
    OptionError,
    Problem,
    Span,
    TensorSpec,
    open_source,
)
from ckptio.adapters import Adapter
from ckptio.rows import Concatenated, Sliced
from ckptio.transforms import Added, Cast, Transposed

Array = npt.NDArray[Any]
Open = Callable[..., Checkpoint]


@pytest.fixture(params=["memory", "file"])
def checkpoint_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Give a function that makes a checkpoint of arrays: without spans, or with spans into a file."""
    opened: list[Checkpoint] = []

    def in_memory(arrays: Mapping[str, Array], aliases: Mapping[str, str] | None = None) -> Checkpoint:
        return MemoryCheckpoint(arrays, aliases=aliases, metadata={"kept": 1}, leaves={"step": 7})

    def in_file(arrays: Mapping[str, Array], aliases: Mapping[str, str] | None = None) -> Checkpoint:
        path = tmp_path / f"{len(opened)}.raw"
        specs, offsets, content = {}, {}, b"header"
        for name, array in arrays.items():
            specs[name] = TensorSpec(name, DType.of(array.dtype), array.shape)
            offsets[name] = len(content)
            content += array.tobytes()
        path.write_bytes(content)
        with open_source(path) as file:
            made = FileCheckpoint(
                file, specs, offsets, aliases=aliases, metadata={"kept": 1}, leaves={"step": 7}
            )
        opened.append(made)
        return made

    yield in_memory if request.param == "memory" else in_file
    for checkpoint in opened:
        checkpoint.close()


class Recorder:
    """A sink that keeps the bytes, and says which came by chunks."""

    def __init__(self) -> None:
        self.data = b""
        self.chunked = False

    def write(self, data: bytes | memoryview) -> None:
        self.data += bytes(data)
        self.chunked = True

    def copy(self, span: Span) -> None:
        self.data += span.file.read_at(span.offset, span.length)


def check(checkpoint: Checkpoint, name: str, expected: Array) -> None:
    """Compare a tensor by every way in which it can be read."""
    spec = checkpoint.specs[name]
    assert (spec.name, spec.dtype, spec.shape) == (name, DType.of(expected.dtype), expected.shape)
    array = checkpoint.read(name)
    assert (array.dtype, array.shape, array.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    recorder = Recorder()
    checkpoint.copy_to(name, recorder)
    assert recorder.data == expected.tobytes()
    for max_bytes in (1, 24, 1000, 4 << 20):
        chunks = [bytes(chunk) for chunk in checkpoint.chunks(name, max_bytes)]
        assert b"".join(chunks) == expected.tobytes()
        assert all(0 < len(chunk) <= max(max_bytes, expected.itemsize) for chunk in chunks)
        assert all(len(chunk) % expected.itemsize == 0 for chunk in chunks)


def numbers(*shape: int, dtype: str = "<f4") -> Array:
    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape).astype(dtype)


class Unreadable(Adapter):
    """A base whose tensors must not be read."""

    def chunks(self, name: str, max_bytes: int = 0) -> Iterator[memoryview]:
        raise AssertionError(f"{name} was read")


class TestCast:
    def test_floats_alone_are_cast(self, checkpoint_of: Open) -> None:
        arrays = {
            "weight": np.array([1.0, 65504.0, -0.0], "<f4"),
            "half": np.array([1.5], "<f2"),
            "count": np.array(16777217, "<i8"),
            "mask": np.array([[True, False]]),
            "step": np.array([3], "<u4"),
            "phase": np.array([1 + 2j], "<c8"),
        }
        cast = Cast(checkpoint_of(arrays), DType.F16)
        assert cast.cast_names == {"weight"}
        check(cast, "weight", torch.tensor([1.0, 65504.0, -0.0]).half().numpy())
        for name in arrays.keys() - {"weight"}:
            check(cast, name, arrays[name])
            assert cast.spans(name) == cast.base.spans(name)
        assert cast.spans("weight") is None
        assert (cast.metadata, cast.leaves) == ({"kept": 1}, {"step": 7})

    @pytest.mark.parametrize("wanted", ["f64", "f32", "f16", "bf16", "f8_e5m2"])
    @pytest.mark.parametrize("given", ["f64", "f32", "f16", "bf16"])
    def test_chunks_keep_to_the_size_that_is_asked_for(
        self, checkpoint_of: Open, given: str, wanted: str
    ) -> None:
        values = torch.linspace(-3, 3, 600, dtype=getattr(torch, DType(given).long_name)).reshape(20, 30)
        raw = values.view(torch.uint8).numpy().reshape(-1)
        array = raw.view(DType(given).numpy).reshape(20, 30)
        expected = values.to(getattr(torch, DType(wanted).long_name)).view(torch.uint8).numpy().reshape(-1)
        cast = Cast(checkpoint_of({"x": array}), DType(wanted))
        check(cast, "x", expected.view(DType(wanted).numpy).reshape(20, 30))

    @pytest.mark.parametrize("wanted", [DType.F8_E5M2, DType.F64])
    def test_no_more_is_read_at_a_time_than_is_asked_for(self, wanted: DType) -> None:
        asked: list[int] = []

        class Recording(Adapter):
            def chunks(self, name: str, max_bytes: int = 0) -> Iterator[memoryview]:
                asked.append(max_bytes)
                return self.base.chunks(name, max_bytes)

        cast = Cast(Recording(MemoryCheckpoint({"x": numbers(100)})), wanted)
        assert max(len(chunk) for chunk in cast.chunks("x", 100)) <= 100
        assert 8 <= asked[0] <= 100

    def test_only_the_named_and_their_ties(self, checkpoint_of: Open) -> None:
        base = checkpoint_of({"a": numbers(3), "b": numbers(3)}, {"tied": "a"})
        cast = Cast(base, DType.F64, ["a"])
        check(cast, "a", numbers(3, dtype="<f8"))
        check(cast, "b", numbers(3))
        assert cast.aliases == {"tied": "a"}
        assert cast.read("tied").tolist() == [0.0, 1.0, 2.0]

    def test_a_tensor_of_no_elements_and_one_of_no_dimensions(self, checkpoint_of: Open) -> None:
        base = checkpoint_of({"none": numbers(0, 4), "scalar": np.array(2.5, "<f4")})
        cast = Cast(base, DType.F64)
        check(cast, "none", numbers(0, 4, dtype="<f8"))
        check(cast, "scalar", np.array(2.5, "<f8"))
        assert cast.overflowed == {"none": 0, "scalar": 0}

    def test_overflow_is_told_before_and_counted_on_the_way(self, checkpoint_of: Open) -> None:
        raw = torch.tensor([1e5, 1e-8, float("nan"), float("-inf")], dtype=torch.bfloat16).view(torch.uint16)
        arrays = {
            "bad": raw.numpy().view(DType.BF16.numpy),
            "worse": np.array([65519.0, 65520.0, -7e4], "<f4"),
            "good": np.array([65504.0], "<f4"),
        }
        cast = Cast(checkpoint_of(arrays), DType.F16)
        expected = [
            Problem("bad", "1 of 4 values are beyond the largest of f16", "overflow"),
            Problem("worse", "2 of 3 values are beyond the largest of f16", "overflow"),
        ]
        assert cast.overflows() == expected
        assert cast.losses() == ()
        check(cast, "bad", np.array([0x7C00, 0, 0x7E00, 0xFC00], "<u2").view("<f2"))
        check(cast, "worse", np.array([65504.0, np.inf, -np.inf], "<f2"))
        check(cast, "good", np.array([65504.0], "<f2"))
        assert list(cast.chunks("worse", 4))[2:]
        assert cast.overflowed == {"bad": 1, "worse": 2, "good": 0}
        assert cast.losses() == tuple(expected)

    def test_nothing_is_read_where_nothing_can_overflow(self) -> None:
        base = Unreadable(MemoryCheckpoint({"h": numbers(2, dtype="<f2"), "i": numbers(2, dtype="<i8")}))
        assert Cast(base, DType.F32).overflows() == []
        with pytest.raises(AssertionError, match="h was read"):
            Cast(base, DType.F8_E5M2).overflows()

    @pytest.mark.parametrize("dtype", [DType.I32, DType.BOOL, DType.C64, DType.F8_E8M0FNU])
    def test_what_is_no_target(self, dtype: DType) -> None:
        with pytest.raises(OptionError, match=dtype.value):
            Cast(MemoryCheckpoint({}), dtype)


class TestTransposed:
    @pytest.mark.parametrize(
        "shape", [(3, 5), (1, 7), (7, 1), (400, 3), (3, 400), (300, 200), (0, 4), (4, 0)]
    )
    @pytest.mark.parametrize("dtype", ["f64", "bf16", "u8"])
    def test_rows_and_columns_are_exchanged(
        self, checkpoint_of: Open, shape: tuple[int, int], dtype: str
    ) -> None:
        array = (np.arange(np.prod(shape)) % 251).reshape(shape).astype(DType(dtype).numpy)
        base = checkpoint_of({"w": array, "other": numbers(2, 3)})
        transposed = Transposed(base, ["w"])
        check(transposed, "w", np.ascontiguousarray(np.swapaxes(array, 0, 1)))
        check(transposed, "other", numbers(2, 3))
        assert transposed.spans("w") is None
        assert transposed.spans("other") == base.spans("other")

    def test_a_small_one_by_hand(self, checkpoint_of: Open) -> None:
        transposed = Transposed(checkpoint_of({"w": np.array([[1, 2, 3], [4, 5, 6]], "u1")}), ["w"])
        assert b"".join(transposed.chunks("w")) == bytes([1, 4, 2, 5, 3, 6])

    @pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
    def test_other_ranks_are_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="w: only 2-D"):
            Transposed(MemoryCheckpoint({"w": np.zeros(shape)}), ["w"])


class TestSliced:
    @pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 30), (5, 0)])
    def test_every_range_of_rows(self, checkpoint_of: Open, shape: tuple[int, ...]) -> None:
        array = numbers(*shape)
        base = checkpoint_of({"w": array, "other": numbers(2)})
        for start in range(6):
            for stop in range(start, 6):
                sliced = Sliced(base, {"w": (start, stop)})
                check(sliced, "w", array[start:stop])
                check(sliced, "other", numbers(2))
                assert (sliced.spans("w") is None) == (base.spans("w") is None)

    @pytest.mark.parametrize("rows", [(-1, 2), (0, 6), (3, 2)])
    def test_rows_that_are_not_there(self, rows: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="w: no rows"):
            Sliced(MemoryCheckpoint({"w": numbers(5, 2)}), {"w": rows})

    def test_a_scalar_has_no_rows(self) -> None:
        with pytest.raises(ValueError, match="w: no rows"):
            Sliced(MemoryCheckpoint({"w": np.array(1.0)}), {"w": (0, 0)})

    def test_ties_follow(self, checkpoint_of: Open) -> None:
        sliced = Sliced(checkpoint_of({"w": numbers(5, 2)}, {"tied": "w"}), {"w": (1, 3)})
        assert sliced.read("tied").tolist() == [[2.0, 3.0], [4.0, 5.0]]


class TestConcatenated:
    def test_rows_follow_one_another_in_the_order_given(self, checkpoint_of: Open) -> None:
        a, b, c = numbers(2, 3), numbers(1, 3) + 100, numbers(0, 3)
        base = checkpoint_of({"a": a, "b": b, "c": c, "rest": numbers(4)})
        joined = Concatenated(base, {"all": ["b", "c", "a"]})
        assert list(joined.specs) == ["rest", "all"]
        check(joined, "all", np.concatenate([b, c, a]))
        check(joined, "rest", numbers(4))
        recorder = Recorder()
        joined.copy_to("all", recorder)
        assert recorder.chunked == (base.spans("a") is None)

    def test_a_part_may_give_its_name(self, checkpoint_of: Open) -> None:
        joined = Concatenated(checkpoint_of({"a": numbers(2), "b": numbers(3)}), {"a": ["a", "b"]})
        assert joined.names() == ["a"]
        check(joined, "a", np.array([0, 1, 0, 1, 2], "<f4"))

    def test_spans_are_given_up_when_one_part_has_none(self, checkpoint_of: Open) -> None:
        base = checkpoint_of({"a": numbers(2), "b": numbers(3, dtype="<f8")})
        joined = Concatenated(Cast(base, DType.F32), {"all": ["a", "b"]})
        assert joined.spans("all") is None
        check(joined, "all", np.array([0, 1, 0, 1, 2], "<f4"))

    def test_an_alias_of_a_part_stands_in_for_it(self, checkpoint_of: Open) -> None:
        base = checkpoint_of({"a": numbers(2), "b": numbers(3), "c": numbers(1)}, {"tied": "a", "too": "a"})
        joined = Concatenated(base, {"all": ["a", "b"]})
        assert joined.names() == ["tied", "too", "c", "all"]
        assert joined.aliases == {"too": "tied"}
        check(joined, "tied", numbers(2))

    @pytest.mark.parametrize(
        "other", [numbers(2, 4), numbers(2, 3, dtype="<f8"), np.array(1.0, "<f4"), numbers(2)]
    )
    def test_parts_that_do_not_fit(self, other: Array) -> None:
        base = MemoryCheckpoint({"a": numbers(2, 3), "b": other})
        with pytest.raises(ValueError, match="all: the parts do not fit"):
            Concatenated(base, {"all": ["a", "b"]})

    @pytest.mark.parametrize("taken", ["c", "tied"])
    def test_a_name_that_is_taken(self, taken: str) -> None:
        arrays = {"a": numbers(2), "b": numbers(3), "c": numbers(1)}
        base = MemoryCheckpoint(arrays, aliases={"tied": "c"})
        with pytest.raises(ValueError, match=f"{taken}: there is a tensor"):
            Concatenated(base, {taken: ["a", "b"]})

    def test_slices_of_it_are_pieces_of_the_parts(self, checkpoint_of: Open) -> None:
        rows = np.concatenate([numbers(3, 2), numbers(2, 2), numbers(4, 2)])
        base = checkpoint_of({"a": numbers(3, 2), "b": numbers(2, 2), "c": numbers(4, 2)})
        joined = Concatenated(base, {"all": ["a", "b", "c"]})
        for start in range(10):
            for stop in range(start, 10):
                check(Sliced(joined, {"all": (start, stop)}), "all", rows[start:stop])


class TestAdded:
    def test_they_stand_after_the_base(self, checkpoint_of: Open) -> None:
        base = checkpoint_of({"a": numbers(2)}, {"tied": "a"})
        mask = MemoryCheckpoint({"mask": np.tril(np.ones((30, 30), "<f4"))})
        added = Added(base, {"mask": (mask.specs["mask"], lambda size: mask.chunks("mask", size))})
        assert added.names() == ["a", "tied", "mask"]
        assert added.spans("mask") is None
        assert added.spans("a") == base.spans("a")
        check(added, "mask", np.tril(np.ones((30, 30), "<f4")))
        check(added, "a", numbers(2))

    @pytest.mark.parametrize("taken", ["a", "tied"])
    def test_a_name_that_is_taken(self, taken: str) -> None:
        base = MemoryCheckpoint({"a": numbers(2)}, aliases={"tied": "a"})
        spec = dataclasses.replace(base.specs["a"], name=taken)
        with pytest.raises(ValueError, match=f"{taken}: there is a tensor"):
            Added(base, {taken: (spec, lambda size: base.chunks("a", size))})
