"""Tied, shared and strided tensors: T1 to T7, in every format that holds tensors of any names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from golden import golden
from held import held
from independent import read_ckpt

WTE = np.arange(12, dtype="<f4").reshape(4, 3)
HEAD, EMBEDDING = "lm_head.weight", "transformer.wte.weight"


def gpt2(**changed: Any) -> dict[str, Any]:
    """Return the tensors of a real GPT-2, some of them changed or (None) left out."""
    tensors = {**ckptio.load(golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin")), **changed}
    return {name: array for name, array in tensors.items() if array is not None}


def test_t1_a_tie_comes_back_as_a_tie_and_both_names_have_the_bytes(tmp_path: Path, target: str) -> None:
    path = tmp_path / "model"
    ckptio.save({"wte": WTE, "b": WTE + 1, "head": WTE}, path, checkpoint_format=target)
    with ckptio.open(path, checkpoint_format=target) as checkpoint:
        assert {checkpoint.canonical("wte"), checkpoint.canonical("head")} <= {"wte", "head"}
        assert checkpoint.canonical("wte") == checkpoint.canonical("head")
        assert len(checkpoint.specs) == 2
        assert checkpoint.read("head").tobytes() == checkpoint.read("wte").tobytes() == WTE.tobytes()


def test_t1_without_the_record_every_name_is_a_tensor_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    ckptio.save({"wte": WTE, "head": WTE}, path)
    found = {name: stored.data for name, stored in read_ckpt(path).items()}
    assert found == {"wte": WTE.tobytes(), "head": WTE.tobytes()}


@pytest.mark.parametrize(
    "how", [{"checkpoint_format": "llmc"}, {"layout": "llmc"}, {"layout": "infinitrain"}]
)
def test_t2_a_head_that_differs_is_refused_before_anything_is_written(
    tmp_path: Path, how: dict[str, str]
) -> None:
    head = ckptio.load(golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin"))[HEAD].copy()
    head[96, 31] = np.float32(100.0)  # the last element; the true one is far below 1
    largest = abs(100.0 - float(gpt2()[EMBEDDING][96, 31]))
    ckptio.save(gpt2(**{HEAD: head}), tmp_path / "in.ckpt")
    with pytest.raises(ckptio.UnsupportedError) as caught:
        ckptio.convert(tmp_path / "in.ckpt", tmp_path / "out.ckpt", **how, config={"n_head": 2})  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert problem.where == HEAD
    assert EMBEDDING in problem.what
    assert f"{largest:g}" in problem.what
    assert [each.name for each in tmp_path.iterdir()] == ["in.ckpt"]


def test_t3_equal_bytes_are_no_tie_unless_asked(tmp_path: Path, target: str) -> None:
    ckptio.save({"a": WTE, "b": WTE.copy()}, tmp_path / "apart", checkpoint_format=target)
    ckptio.convert(tmp_path / "apart", tmp_path / "again", source_format=target, checkpoint_format=target)
    for path in (tmp_path / "apart", tmp_path / "again"):
        with ckptio.open(path, checkpoint_format=target) as checkpoint:
            assert list(checkpoint.specs) == ["a", "b"]
            assert not checkpoint.aliases
    ckptio.save({"a": WTE, "b": WTE.copy()}, tmp_path / "tied", checkpoint_format=target, aliases={"b": "a"})
    with ckptio.open(tmp_path / "tied", checkpoint_format=target) as checkpoint:
        assert dict(checkpoint.aliases) == {"b": "a"}


@pytest.mark.parametrize(("only", "absent"), [(HEAD, EMBEDDING), (EMBEDDING, HEAD)])
@pytest.mark.parametrize("layout", ["llmc", "infinitrain"])
def test_t4_either_name_of_the_one_matrix_serves_as_both(
    tmp_path: Path, only: str, absent: str, layout: str
) -> None:
    tensors = gpt2(**{absent: None})
    ckptio.save(tensors, tmp_path / "in.ckpt")
    report = ckptio.convert(tmp_path / "in.ckpt", tmp_path / "out.ckpt", layout=layout)
    found = read_ckpt(tmp_path / "out.ckpt")
    assert found[only].data == found[absent].data == tensors[only].tobytes()
    # Either what is there under another name too is said to be added, or the one that is there to be renamed.
    fate = next(fate for fate in report.fates if fate.name == only)
    assert absent in report.added or (fate.target, "renamed" in fate.actions) == (absent, True)


STRIDED = {
    "fortran": np.asfortranarray(np.arange(24, dtype="<f4").reshape(4, 6)),
    "every other": np.arange(24, dtype="<i4").reshape(4, 6)[:, ::2],
    "transposed": np.arange(24, dtype="<f8").reshape(4, 6).T,
    "broadcast": np.broadcast_to(np.array([1, 2], "<i8"), (4, 2)),
    "backwards": np.arange(24, dtype="<u1").reshape(4, 6)[::-1, ::-1],
    "permuted": np.arange(24, dtype="<f4").reshape(2, 3, 4).transpose(2, 0, 1),
}


def test_t5_any_strides_are_c_order_on_disk(tmp_path: Path, target: str) -> None:
    tensors = held(target, STRIDED, tmp_path)
    assert len(tensors) > 3
    ckptio.save(tensors, tmp_path / "in", checkpoint_format=target)
    ckptio.convert(tmp_path / "in", tmp_path / "out.ckpt", source_format=target)
    found = read_ckpt(tmp_path / "out.ckpt")
    for name, array in tensors.items():
        assert (found[name].shape, found[name].data) == (array.shape, array.tobytes(order="C")), name


def test_t6_tensors_without_elements_are_no_ties(tmp_path: Path, target: str) -> None:
    empty = np.zeros(0, "<f4")
    tensors = held(target, {"a": empty, "b": empty, "c": empty[:]}, tmp_path)
    ckptio.save(tensors, tmp_path / "x", checkpoint_format=target)
    with ckptio.open(tmp_path / "x", checkpoint_format=target) as checkpoint:
        assert sorted(checkpoint.specs) == sorted(tensors)
        assert not checkpoint.aliases


SHAPES: list[tuple[int, ...]] = [(), (0, 4), (1, 1), (0,)]


def test_t7_no_dimension_and_no_element_anywhere_and_last(tmp_path: Path, target: str) -> None:
    for turn in range(len(SHAPES)):
        shapes = SHAPES[turn:] + SHAPES[:turn]
        every = {f"{index}": np.full(shape, 7, "<f4") for index, shape in enumerate(shapes)}
        tensors = held(target, every, tmp_path)
        ckptio.save(tensors, tmp_path / "x", checkpoint_format=target, overwrite=True)
        ckptio.convert(tmp_path / "x", tmp_path / "y.ckpt", source_format=target, overwrite=True)
        found = read_ckpt(tmp_path / "y.ckpt")
        shapes_found = {name: stored.shape for name, stored in found.items()}
        assert shapes_found == {name: array.shape for name, array in tensors.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_t7_a_model_format_refuses_such_shapes_by_name(tmp_path: Path, shape: tuple[int, ...]) -> None:
    name = "transformer.h.1.ln_1.bias"
    ckptio.save(gpt2(**{name: np.zeros(shape, "<f4")}), tmp_path / "in.ckpt")
    with pytest.raises(ckptio.UnsupportedError) as caught:
        ckptio.convert(tmp_path / "in.ckpt", tmp_path / "out.bin", config={"n_head": 2})
    assert {problem.where for problem in caught.value.problems} == {name}
    assert not (tmp_path / "out.bin").exists()
