"""LLaMA 3's rotary scaling, f32 norms and implied heads: what llama.cpp wants otherwise than transformers.

The divisors are judged by transformers' own frequencies, and read by the package gguf.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.constants import RopeScalingType
from safetensors.numpy import load_file, save_file

import ckptio
from ckptio import UnsupportedError
from golden import DATA

LLAMA31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | {
    "original_max_position_embeddings": 8192
}
LLAMA32 = {**LLAMA31, "factor": 32.0}
OTHER = {**LLAMA31, "factor": 20.0}
SIZES = {"vocab_size": 11, "max_position_embeddings": 131072, "hidden_size": 96, "intermediate_size": 40} | {
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
HEAD = 16


def llama(path: Path, dtype: npt.DTypeLike = np.float32, **config: Any) -> Path:
    """Write a folder of transformers with a tied LLaMA of one layer."""
    c, kv, ffn, v = 96, 32, 40, 11
    h = "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, c), "model.norm.weight": (c,)}
    shapes |= {f"{h}input_layernorm.weight": (c,), f"{h}post_attention_layernorm.weight": (c,)}
    shapes |= {
        f"{h}self_attn.{each}_proj.weight": (rows, c)
        for each, rows in zip("qkvo", (c, kv, kv, c), strict=True)
    }
    shapes |= {f"{h}mlp.{each}_proj.weight": (ffn, c) for each in ("gate", "up")}
    shapes[f"{h}mlp.down_proj.weight"] = (c, ffn)
    rng = np.random.default_rng(1)
    path.mkdir()
    tensors = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    save_file(tensors, path / "model.safetensors")
    config = {"model_type": "llama", "tie_word_embeddings": True, **SIZES, **config}
    (path / "config.json").write_text(json.dumps(config))
    return path


def frequencies(scaling: dict[str, Any] | None) -> npt.NDArray[Any]:
    """Return the rotary frequencies that transformers computes with."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theta = {"rope_theta": SIZES["rope_theta"]}
    parameters = {**theta, **(scaling or {"rope_type": "default"})}
    settings: dict[str, Any] = {**SIZES, "rope_parameters": parameters}
    config = LlamaConfig(**settings)
    found: npt.NDArray[Any] = LlamaRotaryEmbedding(config).inv_freq.double().numpy()
    return found


def divisors(path: Path) -> npt.NDArray[Any] | None:
    return next((each.data for each in GGUFReader(path).tensors if each.name == "rope_freqs.weight"), None)


@pytest.mark.parametrize("scaling", [LLAMA31, LLAMA32, OTHER], ids=["3.1", "3.2", "other"])
def test_a_scaling_becomes_divisors_and_comes_back(scaling: dict[str, Any], tmp_path: Path) -> None:
    folder, path = llama(tmp_path / "hf", rope_scaling=scaling), tmp_path / "a.gguf"
    report = ckptio.convert(folder, path, layout="gguf")
    assert "rope_freqs.weight" in report.added
    found = divisors(path)
    assert found is not None
    assert found.dtype == np.float32
    assert found.shape == (HEAD // 2,)
    np.testing.assert_allclose(found, frequencies(None) / frequencies(scaling), rtol=1e-6)
    assert found.min() == 1.0
    assert found.max() == scaling["factor"]

    report = ckptio.convert(path, f"{tmp_path}/again/", checkpoint_format="safetensors", layout="hf")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["rope_scaling"] == scaling
    assert config["max_position_embeddings"] == SIZES["max_position_embeddings"]
    (fate,) = [each for each in report.fates if each.name == "rope_freqs.weight"]
    assert fate.actions == ("derived",)
    tensors = load_file(folder / "model.safetensors")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(np.array_equal(again[name], array) for name, array in tensors.items())


def foreign(path: Path, source: Path, values: npt.NDArray[Any]) -> Path:
    """Write the model of ``source`` as another program would: without a word of ours, with ``values``."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(131072)
    writer.add_embedding_length(96)
    writer.add_feed_forward_length(40)
    writer.add_head_count(6)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(HEAD)
    for tensor in GGUFReader(source).tensors:
        if tensor.name != "rope_freqs.weight":
            writer.add_tensor(tensor.name, np.array(tensor.data))
    if values.size:
        writer.add_tensor("rope_freqs.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("scaling", [LLAMA31, LLAMA32, OTHER, None], ids=["3.1", "3.2", "other", "none"])
def test_divisors_of_another_program_are_understood(scaling: dict[str, Any] | None, tmp_path: Path) -> None:
    ckptio.convert(llama(tmp_path / "hf"), tmp_path / "a.gguf", layout="gguf")
    assert divisors(tmp_path / "a.gguf") is None
    values = (frequencies(None) / frequencies(scaling)).astype("f4") if scaling else np.empty(0, "f4")
    path = foreign(tmp_path / "b.gguf", tmp_path / "a.gguf", values)
    ckptio.convert(path, f"{tmp_path}/hf2/", checkpoint_format="safetensors", layout="hf")
    assert json.loads((tmp_path / "hf2" / "config.json").read_text())["rope_scaling"] == scaling
    if scaling in (LLAMA31, None):
        ckptio.convert(path, tmp_path / "a.bin", checkpoint_format="llmc")
        with ckptio.open(tmp_path / "a.bin") as checkpoint:
            assert checkpoint.metadata["config"]["use_scaled_rope"] is (scaling is not None)
    else:
        with pytest.raises(UnsupportedError, match="LLaMA 3.1's scaling alone"):
            ckptio.convert(path, tmp_path / "a.bin", checkpoint_format="llmc")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.linspace(1, 9, HEAD // 2, dtype="f4"), "no scaling of LLaMA 3 makes these divisors"),
        (np.full(HEAD // 2, np.nan, "f4"), "no scaling of LLaMA 3 makes these divisors"),
        (np.ones(HEAD, "f4"), "but heads of 16 rows have 8 divisors"),
    ],
)
def test_divisors_of_no_scaling_are_refused(values: npt.NDArray[Any], message: str, tmp_path: Path) -> None:
    ckptio.convert(llama(tmp_path / "hf"), tmp_path / "a.gguf", layout="gguf")
    path = foreign(tmp_path / "b.gguf", tmp_path / "a.gguf", values)
    with pytest.raises(UnsupportedError, match=message) as caught:
        ckptio.convert(path, f"{tmp_path}/hf2/", checkpoint_format="safetensors", layout="hf")
    assert [each.where for each in caught.value.problems] == ["rope_freqs.weight"]
    assert not (tmp_path / "hf2").exists()


@pytest.mark.parametrize("key", ["rope.scaling.type", "rope.dimension_count"])
def test_a_rotation_that_others_do_not_have_is_refused(key: str, tmp_path: Path) -> None:
    ckptio.convert(llama(tmp_path / "hf"), tmp_path / "a.gguf", layout="gguf")
    reader, path = GGUFReader(tmp_path / "a.gguf"), tmp_path / "b.gguf"
    writer = GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if name.startswith("llama."):
            writer.add_key_value(name, field.contents(), field.types[0])
    writer.add_rope_scaling_type(RopeScalingType.YARN) if key.endswith(
        "type"
    ) else writer.add_rope_dimension_count(8)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError) as caught:
        ckptio.convert(path, f"{tmp_path}/hf2/", checkpoint_format="safetensors", layout="hf")
    expected = "config.rope_scaling" if key.endswith("type") else "config.rope_dimension_count"
    assert [each.where for each in caught.value.problems] == [expected]


def test_a_scaling_without_its_tensor_is_refused(tmp_path: Path) -> None:
    ckptio.convert(llama(tmp_path / "hf"), tmp_path / "a.gguf", layout="gguf")
    with pytest.raises(UnsupportedError, match="--layout gguf makes it"):
        ckptio.convert(tmp_path / "a.gguf", tmp_path / "b.gguf", config={"use_scaled_rope": True})


def test_a_refusal_has_no_names_from_half_the_way(tmp_path: Path) -> None:
    bare = (llama(tmp_path / "hf") / "model.safetensors").rename(tmp_path / "bare.safetensors")
    how: dict[str, Any] = {"config": {"n_head": 6, "use_scaled_rope": True}, "options": {"quantize": "q8_0"}}
    with pytest.raises(UnsupportedError) as caught:
        ckptio.convert(bare, tmp_path / "a.gguf", layout="gguf", **how)
    assert "config.rope_theta" in {each.where for each in caught.value.problems}
    assert not any(each.where.startswith("transformer.") for each in caught.value.problems)


@pytest.mark.parametrize("dtype", [None, "f16", "bf16"])
def test_norms_stay_f32_and_a_tied_head_is_not_stored(dtype: str | None, tmp_path: Path) -> None:
    folder, path = llama(tmp_path / "hf", ml_dtypes.bfloat16, rope_scaling=LLAMA31), tmp_path / "a.gguf"
    report = ckptio.convert(folder, path, layout="gguf", dtype=dtype)
    types = {each.name: each.tensor_type for each in GGUFReader(path).tensors}
    assert "output.weight" not in types
    wide = {name for name, kind in types.items() if kind == GGMLQuantizationType.F32}
    norms = {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"}
    assert wide == norms | {"rope_freqs.weight"}
    kept = GGMLQuantizationType.F16 if dtype == "f16" else GGMLQuantizationType.BF16
    assert set(types.values()) == {GGMLQuantizationType.F32, kept}
    norm = load_file(folder / "model.safetensors")["model.norm.weight"]
    with ckptio.open(path) as checkpoint:
        np.testing.assert_array_equal(checkpoint.read("output_norm.weight"), norm.astype("f4"))
    actions = {each.name: each.actions for each in report.fates}
    assert actions["model.norm.weight"] == ("cast", "renamed")


def test_a_tie_that_the_source_stores_is_accounted_for(tmp_path: Path) -> None:
    source = DATA / "golden" / "infinitrain" / "runs" / "gpt2_adam" / "ckpt" / "checkpoint_step_000002"
    report = ckptio.convert(source / "model.ckpt", tmp_path / "a.gguf", layout="gguf", config={"n_head": 2})
    assert "output.weight" not in {each.name for each in GGUFReader(tmp_path / "a.gguf").tensors}
    (fate,) = [each for each in report.fates if each.name == "lm_head.weight"]
    assert (fate.actions, fate.target) == (("tied",), "token_embd.weight")


@pytest.mark.parametrize("layout", [None, "gguf"])
def test_norms_of_a_gguf_file_stay_f32(layout: str | None, tmp_path: Path) -> None:
    ckptio.convert(llama(tmp_path / "hf"), tmp_path / "a.gguf", layout="gguf")
    ckptio.convert(tmp_path / "a.gguf", tmp_path / "b.gguf", dtype="bf16", layout=layout)
    types = {each.name: each.tensor_type for each in GGUFReader(tmp_path / "b.gguf").tensors}
    assert types["output_norm.weight"] == GGMLQuantizationType.F32
    assert types["token_embd.weight"] == GGMLQuantizationType.BF16


def test_bf16_norms_are_refused_where_no_layout_is_asked_for(tmp_path: Path) -> None:
    ckptio.convert(llama(tmp_path / "hf"), tmp_path / "a.gguf", layout="gguf")
    ckptio.convert(tmp_path / "a.gguf", tmp_path / "a.safetensors", dtype="bf16")
    with pytest.raises(UnsupportedError, match="--layout gguf makes it so") as caught:
        ckptio.convert(tmp_path / "a.safetensors", tmp_path / "b.gguf")
    norms = {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"}
    assert {each.where for each in caught.value.problems} == norms
    ckptio.convert(tmp_path / "a.safetensors", tmp_path / "b.gguf", layout="gguf")
