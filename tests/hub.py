"""Folders of small models as transformers writes them, and what it says of ours."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ckptio

KINDS = ("gpt2", "llama", "qwen2")
VOCABULARY = 96


def make_model(kind: str, *, tied: bool = True, vocabulary: int = VOCABULARY) -> Any:
    """Return a model of transformers with random weights."""
    transformers = pytest.importorskip("transformers")
    import torch

    torch.manual_seed(0)
    common = {"vocab_size": vocabulary, "tie_word_embeddings": tied, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "gpt2":
        config = transformers.GPT2Config(n_positions=16, n_embd=32, n_layer=2, n_head=4, **common)
        return transformers.GPT2LMHeadModel(config)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 16,
    }
    name = {"llama": "Llama", "qwen2": "Qwen2"}[kind]
    config = getattr(transformers, f"{name}Config")(**sizes, **common)
    return getattr(transformers, f"{name}ForCausalLM")(config)


def to_folder(source: Path, target: Path, **options: Any) -> ckptio.ConversionReport:
    """Convert to a folder of safetensors in the layout of transformers."""
    return ckptio.convert(source, f"{target}/", checkpoint_format="safetensors", layout="hf", **options)


def load_model(folder: Path, caplog: pytest.LogCaptureFixture, **options: Any) -> Any:
    """Return transformers' model of a folder; nothing may be warned of on the way."""
    transformers = pytest.importorskip("transformers")

    transformers.utils.logging.enable_propagation()
    caplog.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load = transformers.AutoModelForCausalLM.from_pretrained
        model, report = load(folder, output_loading_info=True, **options)
    assert not any(report.values()), report
    assert caplog.messages == []
    stored = json.loads((folder / "config.json").read_bytes())["dtype"]
    assert options or str(model.dtype) == f"torch.{stored}"
    return model.eval()


def run_folder(folder: Path, tokens: npt.NDArray[Any], caplog: pytest.LogCaptureFixture) -> npt.NDArray[Any]:
    """Return transformers' f32 logits of a folder; nothing may be warned of on the way."""
    import torch

    load_model(folder, caplog)
    with torch.no_grad():
        model = load_model(folder, caplog, dtype=torch.float32)
        logits = model(torch.from_numpy(tokens.astype(np.int64))).logits
    return np.asarray(logits.numpy())
