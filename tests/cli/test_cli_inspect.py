"""inspect: what it says of golden files, held against their truths."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden import golden

GPT2 = golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin")
MIXED = golden("flax/mixed_to_bytes.msgpack")


def truth(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(path.with_name(path.stem + ".truth.npz")) as arrays:
        return {name: arrays[name] for name in arrays}


def test_json_tells_everything_of_a_gpt2(ckpt: Callable[..., Any]) -> None:
    # The masks are not in the file, and the head is the embedding: stored once, named twice.
    wanted = {name: each for name, each in truth(GPT2).items() if not name.endswith(".attn.bias")}
    head = wanted.pop("lm_head.weight")
    fields = json.loads(GPT2.with_suffix(".header.json").read_text())["fields"]
    about = json.loads(ckpt("inspect", GPT2, "--json").out)
    assert about["format"] == "llmc"
    assert "magic" in about["reason"]
    assert about["file_bytes"] == GPT2.stat().st_size
    assert about["parameters"] == sum(each.size for each in wanted.values())
    assert about["tensor_bytes"] == 4 * about["parameters"]
    assert about["dtypes"] == {
        "f32": {"tensors": len(wanted), "parameters": about["parameters"], "bytes": about["tensor_bytes"]}
    }
    assert about["ties"] == {"lm_head.weight": "transformer.wte.weight"}
    assert about["config"].items() >= {
        (key, fields[key]) for key in ("n_layer", "n_head", "n_embd", "vocab_size")
    }
    shapes = {each["name"]: (each["dtype"], tuple(each["shape"])) for each in about["tensors"]}
    wanted["lm_head.weight"] = head
    assert shapes == {name: ("f32", each.shape) for name, each in wanted.items()}


def test_text_names_every_tensor_whole(ckpt: Callable[..., Any], saved: Callable[..., Path]) -> None:
    long = "transformer." + "block." * 60 + "weight"
    ended = ckpt("inspect", saved("long.ckpt", {long: np.ones((2, 3), np.float32)}))
    assert f"{long}  f32    (2, 3)     24\n" in ended.out

    out = ckpt("inspect", GPT2).out
    for name in truth(GPT2):
        assert (f"\n{name} " in out) == (not name.endswith(".attn.bias")), name
    for line in ("tensors       28: 28 f32", "n_head=2", "lm_head.weight = transformer.wte.weight"):
        assert line in out


def test_leaves_are_shown_in_text_and_encoded_in_json(ckpt: Callable[..., Any]) -> None:
    # The values are those that flax was given, as the truth file lists them.
    recorded = json.loads(MIXED.with_name("mixed_to_bytes.truth.json").read_text())["leaves"]
    wanted = {path for path, leaf in recorded.items() if "shape" not in leaf}
    about = json.loads(ckpt("inspect", MIXED, "--json").out)
    assert about["leaves"].keys() == wanted
    assert about["leaves"]["pystr"] == "héllo"
    assert about["leaves"]["pycomplex"] == {"$complex": [1.5, -2.0]}
    out = ckpt("inspect", MIXED).out
    assert '\n    pystr: "héllo"\n' in out
    assert "\n    none: null\n" in out


def test_a_long_leaf_is_cut_with_an_ellipsis_and_whole_in_json(
    ckpt: Callable[..., Any], saved: Callable[..., Path]
) -> None:
    path = saved("x.msgpack", {"w": np.ones(1, np.float32)}, leaves={"text": "a" * 5000})
    assert "a" * 300 not in ckpt("inspect", path).out
    assert "aaa…\n" in ckpt("inspect", path).out
    assert json.loads(ckpt("inspect", path, "--json").out)["leaves"] == {"text": "a" * 5000}


def test_filter_lists_the_names_that_match(ckpt: Callable[..., Any]) -> None:
    wanted = {name for name in truth(GPT2) if ".ln_1." in name or name.endswith("lm_head.weight")}
    about = json.loads(ckpt("inspect", GPT2, "--json", "--filter", "*.ln_1.*", "--filter", "lm_head*").out)
    assert {each["name"] for each in about["tensors"]} == wanted
    assert about["stored"] == 28  # what is counted is the whole file


def test_a_filter_that_matches_nothing_is_an_error(ckpt: Callable[..., Any]) -> None:
    ended = ckpt("inspect", GPT2, "--filter", "nothing*")
    assert (ended.status, ended.out) == (1, "")
    assert "'nothing*'" in ended.err


@pytest.mark.parametrize(
    "path", [GPT2, golden("llmc_gpt2/gpt2_L2H2C32V97T16_bf16.bin"), MIXED], ids=lambda path: path.name
)
def test_stats_are_those_of_the_truth(ckpt: Callable[..., Any], path: Path) -> None:
    wanted = truth(path)
    about = json.loads(ckpt("inspect", path, "--stats", "--json").out)
    assert len(about["tensors"]) > 20
    for each in about["tensors"]:
        values = wanted[each["name"]]
        values = np.abs(values) if values.dtype.kind == "c" else values
        stats = each["stats"]
        if values.size == 0:
            assert stats == {"min": None, "max": None, "mean": None, "nan": 0, "inf": 0}
            continue
        exact = values.astype({"f": np.float64, "b": np.int64}.get(values.dtype.kind, values.dtype))
        assert stats["min"] == pytest.approx(exact.min(), rel=1e-6 if each["dtype"] == "c64" else 0)
        assert stats["max"] == pytest.approx(exact.max(), rel=1e-6 if each["dtype"] == "c64" else 0)
        assert stats["mean"] == pytest.approx(exact.astype(np.float64).mean(), rel=1e-6, abs=1e-12)
        assert (stats["nan"], stats["inf"]) == (0, 0)


def test_floats_that_json_lacks_are_objects(ckpt: Callable[..., Any], saved: Callable[..., Path]) -> None:
    deep: Any = float("-inf")
    for _ in range(490):
        deep = [deep]
    path = saved("x.msgpack", {"w": np.ones(1, np.float32)}, leaves={"deep": deep, "nan": float("nan")})

    def no_constant(token: str) -> None:
        raise AssertionError(token)

    leaves = json.loads(ckpt("inspect", path, "--json").out, parse_constant=no_constant)["leaves"]
    assert leaves["nan"] == {"$float": "nan"}
    for _ in range(490):
        (leaves["deep"],) = leaves["deep"]
    assert leaves["deep"] == {"$float": "-inf"}


def test_omissions_are_listed(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    # The last padded row of the embedding: written after the 97 rows that count, up to row 128.
    data = bytearray(GPT2.read_bytes())
    end = 1024 + 128 * 32 * 4
    data[end - 4 : end] = np.float32(1.5).tobytes()
    path = tmp_path / "padded.bin"
    path.write_bytes(data)
    (omission,) = json.loads(ckpt("inspect", path, "--json").out)["omissions"]
    assert omission["where"] == "transformer.wte.weight"
    assert omission["allow"] == "padding"
    assert "transformer.wte.weight: " in ckpt("inspect", path).out.partition("not shown")[2]
    assert json.loads(ckpt("inspect", GPT2, "--json").out)["omissions"] == []


def test_an_option_of_the_reader_must_be_known(ckpt: Callable[..., Any]) -> None:
    ended = ckpt("inspect", GPT2, "-O", "colour=red")
    assert ended.status == 1
    assert "no option 'colour' (-O)" in ended.err


def test_one_long_name_does_not_widen_every_line(
    ckpt: Callable[..., Any], saved: Callable[..., Path]
) -> None:
    long = "L" * 10_000
    path = saved("long.ckpt", {"a": np.ones(1, np.float32), long: np.ones(1, np.float32)})
    lines = ckpt("inspect", path).out.splitlines()
    assert [line for line in lines if len(line) > 200] == [f"{long}  f32    (1,)       4"]
