"""Files that llm.c wrote: their values, their headers, and the same bytes when they are written again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ckptio
from ckptio import MemoryCheckpoint
from golden import golden, golden_id
from llmc_files import (
    FORMAT,
    MODELS,
    STATE_MODELS,
    bits,
    config_of,
    layout_of,
    patched,
    problems,
    truth,
    words,
    written,
)

RECORDED = [path for path in MODELS if path.with_suffix(".header.json").exists()]


@pytest.mark.parametrize("path", MODELS, ids=golden_id)
def test_every_model_equals_its_truth(path: Path) -> None:
    expected = truth(path)
    with FORMAT.open(path, {}) as checkpoint:
        names = {name for name in expected if not name.endswith(".attn.bias")}
        assert set(checkpoint.names()) == names
        for name in names:
            found = checkpoint.read(name)
            assert found.dtype == expected[name].dtype
            assert found.shape == expected[name].shape
            assert found.tobytes() == expected[name].tobytes(), name
        assert checkpoint.omissions() == []


@pytest.mark.parametrize("path", STATE_MODELS, ids=golden_id)
def test_the_models_of_training_runs_equal_their_truth(path: Path) -> None:
    with np.load(path.with_name("truth.npz")) as arrays, FORMAT.open(path, {}) as checkpoint:
        names = [name for name in arrays.files if name.startswith("param:")]
        assert {name.removeprefix("param:") for name in names} == set(checkpoint.specs)
        for name in names:
            found = checkpoint.read(name.removeprefix("param:"))
            # The truth has the f32 masters, of which a bf16 model is the nearest-even rounding.
            assert found.tobytes() == arrays[name].astype(found.dtype).tobytes()


@pytest.mark.parametrize("path", RECORDED, ids=golden_id)
def test_the_config_is_what_the_header_says_and_no_more(path: Path) -> None:
    record = json.loads(path.with_suffix(".header.json").read_text())
    with FORMAT.open(path, {}) as checkpoint:
        config, raw = checkpoint.metadata["config"], checkpoint.metadata["llmc"]
    layout = layout_of(path)
    if layout == "gpt2":
        fields = record["fields"]
        expected = {key: fields[key] for key in ("vocab_size", "n_layer", "n_head", "n_embd")}
        assert config == {**expected, "block_size": fields["max_seq_len"]}
    else:
        expected = config_of(path)
        if layout == "master":
            # int() was applied to these on writing; what is left is no fact.
            del expected["ffn_dim_multiplier"], expected["norm_eps"]
        if layout != "branch":
            expected["max_gen_batch_size"] = 4
        assert config == expected
    assert raw["layout"] == layout
    assert raw["version"] == (5 if path.stem.endswith("bf16") else 3)
    assert raw["header"] == list(words(path))[: len(raw["header"])]
    assert not any(words(path)[len(raw["header"]) :])
    assert ("float_header" in raw) == (layout == "branch")


@pytest.mark.parametrize("path", [*MODELS, *STATE_MODELS], ids=golden_id)
def test_reading_and_writing_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    with FORMAT.open(path, {}) as checkpoint:
        assert written(checkpoint, tmp_path) == path.read_bytes()


@pytest.mark.parametrize("path", RECORDED, ids=golden_id)
def test_the_truth_with_its_config_becomes_the_real_file(path: Path, tmp_path: Path) -> None:
    checkpoint = MemoryCheckpoint(truth(path), metadata={"config": config_of(path)})
    layout = layout_of(path)
    assert written(checkpoint, tmp_path, None if layout == "gpt2" else layout) == path.read_bytes()


@pytest.mark.parametrize("size", ["L4H4KV2C16V96T16"])
def test_one_layout_of_llama_becomes_the_other(size: str, tmp_path: Path) -> None:
    base = "llmc_llama3/llama3_" + size
    files = {
        "master": golden(f"{base}_masterlayout_fp32.bin"),
        "branch": golden(f"{base}_branchlayout_fp32.bin"),
        "infinitrain": golden(f"{base}_infinitrainheader_fp32.bin"),
    }
    for source in ("branch", "infinitrain"):
        with FORMAT.open(files[source], {}) as checkpoint:
            for layout, path in files.items():
                assert written(checkpoint, tmp_path, layout) == path.read_bytes(), (source, layout)
    with FORMAT.open(files["master"], {}) as checkpoint:
        lost = problems(checkpoint, "branch")
        assert [line.split(":")[0] for line in lost] == ["config.ffn_dim_multiplier", "config.norm_eps"]
        assert "--config norm_eps=…" in lost[1]


def test_infinitrains_header_is_llmcs_with_three_floats_as_bits(tmp_path: Path) -> None:
    master = golden("llmc_llama3/llama3_L4H4KV2C16V96T16_masterlayout_fp32.bin")
    path = tmp_path / "infinitrain.bin"
    path.write_bytes(patched(master.read_bytes(), {8: bits(1.3), 10: bits(1e-5), 11: bits(500000.0)}))
    expected = truth(master)
    with FORMAT.open(path, {}) as checkpoint:
        assert checkpoint.metadata["llmc"]["layout"] == "infinitrain"
        assert checkpoint.metadata["config"]["ffn_dim_multiplier"] == 1.3
        assert checkpoint.metadata["config"]["norm_eps"] == 1e-5
        for name, value in expected.items():
            assert checkpoint.read(name).tobytes() == value.tobytes()


def test_llmc_to_infinitrain_and_back(tmp_path: Path) -> None:
    source = golden("llmc_gpt2/gpt2_L4H12C24V97T16_fp32.bin")
    middle, back = tmp_path / "model.ckpt", tmp_path / "model.bin"
    ckptio.convert(source, middle, layout="infinitrain")
    found, expected = ckptio.load(middle), truth(source)
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
    ckptio.convert(middle, back)
    assert back.read_bytes() == source.read_bytes()


def test_the_head_is_an_alias_of_the_embedding() -> None:
    with FORMAT.open(golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin"), {}) as checkpoint:
        assert checkpoint.aliases == {"lm_head.weight": "transformer.wte.weight"}
    with FORMAT.open(golden("llmc_llama3/llama3_L4H4KV2C16V96T16_masterlayout_fp32.bin"), {}) as checkpoint:
        assert checkpoint.aliases == {}
