"""What we write loads in transformers without a word, with the values that its own casts give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hub import KINDS, load_model, make_model, to_folder

CASES = [(kind, tied) for kind in KINDS for tied in (True, False)]
OUR_NAMES = {
    "gpt2": {"n_head": 4},
    "llama": {"n_head": 4, "rope_theta": 1e4, "use_scaled_rope": False, "norm_eps": 1e-6, "block_size": 16},
    "qwen2": {"n_head": 4, "rope_theta": 1e4, "norm_eps": 1e-6, "block_size": 16},
}


def same_weights(model: Any, other: Any) -> bool:
    import torch

    ours, theirs = model.state_dict(), other.state_dict()
    # Casts of NaN-free values, so that equality says all.
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("shards", ["5GB", "20KB"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("kind", "tied"), CASES)
def test_a_folder_of_transformers_written_anew(
    kind: str, tied: bool, dtype: str, shards: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    model = make_model(kind, tied=tied)
    model.save_pretrained(tmp_path / "in")
    to_folder(tmp_path / "in", tmp_path / "out", dtype=dtype, options={"max_shard_size": shards})
    assert (len(list((tmp_path / "out").glob("*.safetensors"))) > 1) == (shards == "20KB")
    found = load_model(tmp_path / "out", caplog)
    assert same_weights(found, model.to({"f32": torch.float32, "bf16": torch.bfloat16}[dtype]))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("kind", "tied"), CASES)
def test_a_config_that_is_made_of_the_tensors_and_a_few_numbers(
    kind: str, tied: bool, dtype: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    model = make_model(kind, tied=tied)
    model.save_pretrained(tmp_path / "in")
    (tmp_path / "in/model.safetensors").rename(tmp_path / "bare.safetensors")
    to_folder(tmp_path / "bare.safetensors", tmp_path / "out", dtype=dtype, config=OUR_NAMES[kind])
    found = load_model(tmp_path / "out", caplog)
    assert same_weights(found, model.to({"f32": torch.float32, "bf16": torch.bfloat16}[dtype]))
    made = json.loads((tmp_path / "out/config.json").read_bytes())
    theirs = json.loads((tmp_path / "in/config.json").read_bytes())
    assert made["tie_word_embeddings"] == tied
    assert made["architectures"] == theirs["architectures"]


@pytest.mark.parametrize("kind", KINDS)
def test_hyperparameters_by_hand_go_into_a_config_of_transformers_in_its_spelling(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    make_model(kind).save_pretrained(tmp_path / "in")
    given = {"n_head": 2} if kind == "gpt2" else {"n_head": 4, "rope_theta": 500.0}
    to_folder(tmp_path / "in", tmp_path / "out", config=given)
    config = json.loads((tmp_path / "in/config.json").read_bytes())
    if kind == "gpt2":
        config["n_head"] = 2
    else:
        config["rope_parameters"]["rope_theta"] = 500.0
    assert json.loads((tmp_path / "out/config.json").read_bytes()) == config
    # What transformers makes of such a config itself.
    (tmp_path / "in/config.json").write_text(json.dumps(config))
    tokens = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        ours, theirs = (load_model(tmp_path / each, caplog)(tokens).logits for each in ("out", "in"))
    assert torch.equal(ours, theirs)
