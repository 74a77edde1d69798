"""GGUF files of models, read by transformers' own loader of GGUF: it must have the very logits of the folder.

Weights that are rounded on the way are rounded in the folder's model too, by numpy and the package gguf.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from experiments.llama_logits import Array, Model, load_f32, logits_of, random_models, round_weights
from golden import golden

GOLDEN = ("gpt2_fp32_single", "gpt2_bf16_sharded", "llama_fp32_sharded", "llama_tied_fp16_sharded")
RANDOM = ("qwen2_6_2_tied", "qwen2_6_2_untied", "llama_6_2_tied", "llama_6_2_untied")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    pytest.importorskip("transformers")
    found = {model.folder.name: model for model in random_models(tmp_path_factory.mktemp("random"))}
    tokens = np.arange(1, 15) * 11 % 97
    for name in GOLDEN:
        folder = golden(f"hf/{name}/config.json").parent
        found[name] = Model(name, folder, folder, tokens)
    return found


def load_gguf(path: Path, config: Any) -> Any:
    """Return the model of a GGUF file, whose metadata must say the config as far as transformers reads it."""
    import torch
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    said = load_gguf_checkpoint(path)["config"]  # type: ignore[no-untyped-call]
    if said["model_type"] == "gpt2":
        # It takes the vocabulary of GPT-2 from the tokens alone, and positions for 1024.
        said |= {"vocab_size": config.vocab_size, "n_positions": config.n_positions}
    model_class: Any = {
        "gpt2": transformers.GPT2LMHeadModel,
        "llama": transformers.LlamaForCausalLM,
        "qwen2": transformers.Qwen2ForCausalLM,
    }[said["model_type"]]
    model: Any = model_class(model_class.config_class(**said))
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]  # type: ignore[no-untyped-call]
    missing, unexpected = model.load_state_dict(
        {name: tensor.to(torch.float32) for name, tensor in tensors.items()}, strict=False
    )
    tied = ["lm_head.weight"] if said["tie_word_embeddings"] else []
    assert (list(missing), list(unexpected)) in ((tied, []), ([], []))
    model.tie_weights()
    return model.eval()


def assert_close(found: Array, expected: Array) -> None:
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * float(np.abs(expected).max()))


def load_back(folder: Path) -> Any:
    """Return the model of a folder that is made of ``a.gguf``."""
    ckptio.convert(folder / "a.gguf", f"{folder}/back/", checkpoint_format="safetensors", layout="hf")
    return load_f32(folder / "back")


def assert_same_weights(found: Any, expected: Any) -> None:
    weights = found.state_dict()
    assert weights.keys() == expected.state_dict().keys()
    for name, weight in expected.state_dict().items():
        np.testing.assert_array_equal(weights[name].numpy(), weight.numpy(), err_msg=name)


@pytest.mark.parametrize("name", [*RANDOM, *GOLDEN])
def test_a_model_has_its_logits_in_f32_and_comes_back(
    name: str, models: dict[str, Model], tmp_path: Path
) -> None:
    model = models[name]
    network = load_f32(model.folder)
    expected = logits_of(network, model.tokens)
    ckptio.convert(model.source, tmp_path / "a.gguf", layout="gguf", dtype="f32")
    assert_close(logits_of(load_gguf(tmp_path / "a.gguf", network.config), model.tokens), expected)

    back = load_back(tmp_path)
    assert_same_weights(back, network)
    np.testing.assert_array_equal(logits_of(back, model.tokens), expected)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", ["qwen2_6_2_tied", "llama_6_2_untied", "gpt2_fp32_single"])
def test_a_model_of_another_type_has_the_logits_of_its_rounded_weights(
    name: str, kind: str, models: dict[str, Model], tmp_path: Path
) -> None:
    model = models[name]
    network = load_f32(model.folder)
    original = logits_of(network, model.tokens)
    round_weights(network, kind)
    how: dict[str, Any] = {"dtype": kind}
    if kind.startswith("q"):
        how = {"options": {"quantize": kind}}
    ckptio.convert(model.source, tmp_path / "a.gguf", layout="gguf", **how)
    found = logits_of(load_gguf(tmp_path / "a.gguf", network.config), model.tokens)
    assert_close(found, logits_of(network, model.tokens))
    assert_same_weights(load_back(tmp_path), network)
    # The type must have cost something, else nothing was rounded.
    assert np.abs(found - original).max() > 1e-4 * np.abs(original).max()
