"""diff: the statuses of diff(1), and what is said of each difference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden import DATA, golden

GPT2 = golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin")
BF16 = golden("llmc_gpt2/gpt2_L2H2C32V97T16_bf16.bin")


def test_a_file_equals_itself(ckpt: Callable[..., Any]) -> None:
    ended = ckpt("diff", GPT2, GPT2)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[-1].startswith("equal: tensors 29 equal, 0 changed")


@pytest.mark.parametrize("suffix", ["ckpt", "msgpack"])
def test_one_model_in_two_formats_is_equal(ckpt: Callable[..., Any], tmp_path: Path, suffix: str) -> None:
    other = tmp_path / f"model.{suffix}"
    assert ckpt("convert", GPT2, other).status == 0
    ended = ckpt("diff", GPT2, other)
    assert ended.status == 0, ended.out


def test_what_belongs_to_a_container_is_shown_and_does_not_count(
    ckpt: Callable[..., Any], saved: Callable[..., Path]
) -> None:
    tensors = {"w": np.ones(2, np.float32)}
    one = saved("a.ckpt", tensors, metadata={"llmc": {"version": 3}})
    other = saved("b.ckpt", tensors)
    ended = ckpt("diff", one, other)
    assert ended.status == 0
    assert "- metadata llmc.version: 3 (of the container; does not count)" in ended.out
    third = saved("c.ckpt", tensors, metadata={"author": "x"})
    ended = ckpt("diff", other, third)
    assert ended.status == 1
    assert '\n+ metadata author: "x"\n' in ended.out


def test_bf16_against_f32_by_value(ckpt: Callable[..., Any]) -> None:
    with np.load(GPT2.with_name(GPT2.stem + ".truth.npz")) as exact:
        wide = exact["transformer.wte.weight"].astype(np.float64)
    with np.load(BF16.with_name(BF16.stem + ".truth.npz")) as rounded:
        narrow = rounded["transformer.wte.weight"].astype(np.float64)
    found = json.loads(ckpt("diff", GPT2, BF16, "--json").out)
    change = next(each for each in found["changed"] if each["name"] == "transformer.wte.weight")
    gaps = np.abs(wide - narrow)
    assert (change["a"]["dtype"], change["b"]["dtype"]) == ("f32", "bf16")
    assert change["distance"]["differing"] == int((gaps > 0).sum())
    assert change["distance"]["max_abs"] == gaps.max()
    assert change["distance"]["max_rel"] == (gaps / np.maximum(np.abs(wide), np.abs(narrow))).max()
    # Half a unit in the last of eight bits.
    assert ckpt("diff", GPT2, BF16).status == 1
    assert ckpt("diff", GPT2, BF16, "--rtol", str(2**-8)).status == 0
    assert ckpt("diff", GPT2, BF16, "--rtol", str(2**-12)).status == 1


def test_every_difference_is_a_line(ckpt: Callable[..., Any], saved: Callable[..., Path]) -> None:
    ones = np.ones(4, np.float32)
    changed = np.array([1, 1, 3, np.nan], np.float32)
    one = saved(
        "a.msgpack",
        {name: ones.copy() for name in ("same", "gone", "value", "shape")},
        aliases={"tied": "same"},
        leaves={"step": 3},
    )
    other = saved(
        "b.msgpack",
        {name: ones.copy() for name in ("same", "new", "tied")}
        | {"value": changed, "shape": np.ones((2, 2), np.float32)},
        leaves={"step": 4},
    )
    ended = ckpt("diff", one, other)
    assert ended.status == 1
    lines = ended.out.splitlines()
    for line in (
        "- gone: f32 (4,)",
        "+ new: f32 (4,)",
        "~ value: 2 of 4 elements differ, by 2 at most, relative 0.666667, 1 of them by a NaN",
        "~ shape: shape (4,) -> (2, 2)",
        "- tie same = tied",
        "~ leaf step: 3 -> 4",
    ):
        assert line in lines
    assert lines[-1].startswith("different: tensors 2 equal, 2 changed, 1 only in A, 1 only in B; 2 ")


@pytest.mark.parametrize("bad", ["--atol=-1", "--rtol=nan"])
def test_a_bad_tolerance_is_trouble(ckpt: Callable[..., Any], bad: str) -> None:
    ended = ckpt("diff", GPT2, GPT2, bad)
    assert (ended.status, ended.out) == (2, "")


def test_what_is_no_checkpoint_is_trouble(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    other = tmp_path / "x.ckpt"
    other.write_bytes(GPT2.read_bytes()[:2000])
    for argv in ((GPT2, other), (other, GPT2), (GPT2, tmp_path)):
        ended = ckpt("diff", *argv)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.startswith("error: ")


def test_the_format_can_be_given(ckpt: Callable[..., Any]) -> None:
    assert ckpt("diff", GPT2, GPT2, "--checkpoint-format", "llmc").status == 0
    assert ckpt("diff", GPT2, GPT2, "--checkpoint_format", "statedict").status == 2


@pytest.mark.parametrize("layout", ["llmc", "infinitrain", "hf", "gguf"])
def test_one_model_in_two_layouts_is_equal_in_a_third(ckpt: Callable[..., Any], layout: str) -> None:
    # The other one was made by llama.cpp's converter, of the same folder.
    paths = DATA / "llama_cpp" / "llama", DATA / "llama_cpp" / "llama.bf16.gguf"
    assert ckpt("diff", *paths).status == 1
    ended = ckpt("diff", *paths, "--layout", layout, "--rtol", "0")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[-1].startswith("equal: ")


@pytest.mark.parametrize("layout", ["llmc", "infinitrain", "hf", "gguf"])
@pytest.mark.parametrize(
    ("name", "made"), [("gpt2_fp32_single", "a.ckpt"), ("llama_tied_fp16_sharded", "a.gguf")]
)
def test_a_tied_head_is_stored_in_one_and_not_in_the_other(
    ckpt: Callable[..., Any], name: str, made: str, layout: str, tmp_path: Path
) -> None:
    folder = golden(f"hf/{name}/config.json").parent
    how = "infinitrain" if made == "a.ckpt" else "gguf"
    assert ckpt("convert", folder, tmp_path / made, "--layout", how).status == 0
    for paths in ((folder, tmp_path / made), (tmp_path / made, folder)):
        ended = ckpt("diff", *paths, "--layout", layout, "--rtol", "0")
        assert (ended.status, ended.out.splitlines()[-1].partition(":")[0]) == (0, "equal")


def test_a_value_that_differs_is_told_by_its_name_in_the_layout(ckpt: Callable[..., Any]) -> None:
    paths = DATA / "llama_cpp" / "gpt2", DATA / "llama_cpp" / "gpt2.f16.gguf"
    ended = ckpt("diff", *paths, "--layout", "llmc", "--rtol", "1e-5")
    assert ended.status == 1
    named = {line.split(":")[0] for line in ended.out.splitlines() if line.startswith("~ ")}
    # What llama.cpp's converter rounded to f16.
    weights = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    rounded = {f"~ transformer.h.0.{name}.weight" for name in weights}
    assert named == rounded | {"~ transformer.wte.weight", "~ lm_head.weight"}


def test_a_file_that_has_no_such_layout_is_named(ckpt: Callable[..., Any]) -> None:
    folder = DATA / "golden" / "infinitrain" / "runs" / "llama3_adam" / "ckpt" / "checkpoint_step_000002"
    model = folder / "model.ckpt"
    ended = ckpt("diff", model, model, "--layout", "hf")
    assert ended.status == 2
    assert f"error: {model}: cannot be brought into the layout 'hf'" in ended.err
    assert "--config n_head=" in ended.err
    assert ckpt("diff", model, model, "--layout", "hf", "--config", "n_head=4").status == 0
    assert ckpt("diff", folder, folder, "--layout", "hf").status == 2
