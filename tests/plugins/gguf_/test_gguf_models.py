"""Models as llama.cpp has them: names by the package's own map, rows by its converter's arithmetic.

``permute`` is that of ``LlamaModel`` in llama.cpp's ``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGUFReader
from safetensors.numpy import load_file, save_file

import ckptio
from ckptio import UnsupportedError
from golden import DATA

Arrays = Mapping[str, np.ndarray[Any, Any]]
ARCHITECTURES = {
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
}
SIZES = {"vocab_size": 11, "max_position_embeddings": 24, "hidden_size": 24, "intermediate_size": 40} | {
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
"""Heads are no multiple of heads per key, and the context is as wide as the model."""


def permute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape)


def as_llama_cpp(tensors: Arrays, config: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return what llama.cpp's converter makes of a model of transformers."""
    kind = config["model_type"]
    names = gguf.get_tensor_name_map(ARCHITECTURES[kind], 2)
    made = {}
    for name, array in tensors.items():
        if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            array = array.T
        if kind == "llama" and name.endswith("q_proj.weight"):
            array = permute(array, config["num_attention_heads"])
        if kind == "llama" and name.endswith("k_proj.weight"):
            array = permute(array, config["num_key_value_heads"])
        made[names.get_name(name, (".weight", ".bias")) or "unknown"] = array
    return made


def rotary_model(kind: str, *, tied: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Return a LLaMA or Qwen2 of transformers, every element another."""
    c, kv, ffn, v = 24, 8, 40, 11
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, c), "model.norm.weight": (c,)}
    for layer in range(2):
        h = f"model.layers.{layer}."
        shapes |= {f"{h}input_layernorm.weight": (c,), f"{h}post_attention_layernorm.weight": (c,)}
        for each, rows in {"q": c, "k": kv, "v": kv, "o": c}.items():
            shapes[f"{h}self_attn.{each}_proj.weight"] = (rows, c)
            if kind == "qwen2" and each != "o":
                shapes[f"{h}self_attn.{each}_proj.bias"] = (rows,)
        shapes |= {f"{h}mlp.{each}_proj.weight": (ffn, c) for each in ("gate", "up")}
        shapes[f"{h}mlp.down_proj.weight"] = (c, ffn)
    if not tied:
        shapes["lm_head.weight"] = (v, c)
    start, made = 0, {}
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        made[name] = np.arange(start, start + size, dtype="<f4").reshape(shape)
        start += size
    return made


def folder_of(path: Path, kind: str, *, tied: bool) -> Path:
    path.mkdir()
    save_file(rotary_model(kind, tied=tied), path / "model.safetensors")
    config = {"model_type": kind, "tie_word_embeddings": tied, **SIZES}
    (path / "config.json").write_text(json.dumps(config))
    return path


def judged(path: Path) -> dict[str, bytes]:
    return {each.name: each.data.tobytes() for each in GGUFReader(path).tensors}


def bytes_of(arrays: Arrays) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_model_of_transformers_becomes_one_of_llama_cpp(kind: str, tied: bool, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "hf", kind, tied=tied)
    tensors = load_file(folder / "model.safetensors")
    path = tmp_path / "a.gguf"
    ckptio.convert(folder, path, layout="gguf")
    wanted = bytes_of(as_llama_cpp(tensors, {"model_type": kind, **SIZES}))
    found = judged(path)
    # A tied head is stored in full: GGUF has no ties.
    if tied and "output.weight" in found:
        wanted["output.weight"] = wanted["token_embd.weight"]
    assert found == wanted
    fields = {key: field.contents() for key, field in GGUFReader(path).fields.items()}
    assert fields["general.architecture"] == kind
    for key, ours in {
        gguf.Keys.LLM.BLOCK_COUNT: "num_hidden_layers",
        gguf.Keys.LLM.CONTEXT_LENGTH: "max_position_embeddings",
        gguf.Keys.LLM.EMBEDDING_LENGTH: "hidden_size",
        gguf.Keys.LLM.FEED_FORWARD_LENGTH: "intermediate_size",
        gguf.Keys.LLM.VOCAB_SIZE: "vocab_size",
        gguf.Keys.Attention.HEAD_COUNT: "num_attention_heads",
        gguf.Keys.Attention.HEAD_COUNT_KV: "num_key_value_heads",
        gguf.Keys.Attention.LAYERNORM_RMS_EPS: "rms_norm_eps",
        gguf.Keys.Rope.FREQ_BASE: "rope_theta",
    }.items():
        assert fields[key.format(arch=kind)] == np.float32(SIZES[ours]), key

    ckptio.convert(path, tmp_path / "again.safetensors", layout="hf")
    assert bytes_of(load_file(tmp_path / "again.safetensors")) == bytes_of(tensors)


def test_gpt2_of_transformers_becomes_one_of_llama_cpp(tmp_path: Path) -> None:
    folder = DATA / "golden" / "hf" / "gpt2_fp32_single"
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    path = tmp_path / "a.gguf"
    ckptio.convert(folder, path, layout="gguf")
    wanted = bytes_of(as_llama_cpp(tensors, config))
    found = judged(path)
    assert found.pop("output.weight", wanted["token_embd.weight"]) == wanted["token_embd.weight"]
    assert found == wanted
    fields = {key: field.contents() for key, field in GGUFReader(path).fields.items()}
    assert fields["gpt2.attention.head_count"] == config["n_head"]
    assert fields["gpt2.attention.layer_norm_epsilon"] == np.float32(config["layer_norm_epsilon"])
    assert fields["gpt2.context_length"] == config["n_positions"]
    assert fields["gpt2.feed_forward_length"] == 4 * config["n_embd"]

    ckptio.convert(path, tmp_path / "again.safetensors", layout="hf")
    assert bytes_of(load_file(tmp_path / "again.safetensors")) == bytes_of(tensors)


def test_what_llama_cpp_needs_and_nobody_says_is_asked_for_by_name(tmp_path: Path) -> None:
    save_file(rotary_model("qwen2", tied=False), tmp_path / "a.safetensors")
    with pytest.raises(UnsupportedError) as caught:
        ckptio.convert(tmp_path / "a.safetensors", tmp_path / "a.gguf", layout="gguf")
    asked = {"n_head", "n_kv_head", "block_size", "norm_eps", "rope_theta"}
    assert {each.where for each in caught.value.problems} == {f"config.{key}" for key in asked}
    config = {"n_head": 6, "block_size": 24, "norm_eps": 1e-6, "rope_theta": 1e6}
    ckptio.convert(tmp_path / "a.safetensors", tmp_path / "a.gguf", layout="gguf", config=config)
    with ckptio.open(tmp_path / "a.gguf") as checkpoint:
        assert checkpoint.metadata["config"].items() >= {**config, "n_kv_head": 2}.items()


def test_a_hyperparameter_that_is_given_replaces_that_of_the_file(tmp_path: Path) -> None:
    golden = DATA / "golden" / "gguf" / "mixed.gguf"
    ckptio.convert(golden, tmp_path / "a.gguf", config={"n_head": 4, "block_size": 8})
    fields = GGUFReader(tmp_path / "a.gguf").fields
    assert fields["gpt2.attention.head_count"].contents() == 4
    assert fields["gpt2.context_length"].contents() == 8
    assert "ckptio.metadata" not in fields


def test_a_number_beyond_f32_is_carried(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_key_value("llama.rope.freq_base", 1e300, gguf.GGUFValueType.FLOAT64)
    writer.add_tensor("x", np.ones(32, "<f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ckptio.convert(tmp_path / "a.gguf", tmp_path / "a.npz")
    ckptio.convert(tmp_path / "a.npz", tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()
