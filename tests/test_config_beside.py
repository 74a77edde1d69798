"""The hyperparameters of a trainer_state.json beside a model: believed where the tensors agree, and told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ckptio
from ckptio import UnsupportedError
from golden import golden

STEP = golden("infinitrain/runs/gpt2_sgd/ckpt/checkpoint_step_000002/model.ckpt").parent


def step(path: Path, **changed: int) -> Path:
    """Copy a step of InfiniTrain, with what it would say had it not started from a model file."""
    path.mkdir()
    shutil.copy(STEP / "model.ckpt", path)
    text = (STEP / "trainer_state.json").read_text()
    for key, (found, wanted) in {"n_layer": (12, 2), "n_embd": (768, 48), "vocab_size": (50304, 97)}.items():
        assert f'"{key}": {found}' in text
        text = text.replace(f'"{key}": {found}', f'"{key}": {changed.get(key, wanted)}')
    (path / "trainer_state.json").write_text(text)
    return path


def config_of(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "config.json").read_text())
    return found


def test_the_heads_are_those_of_the_trainer(tmp_path: Path) -> None:
    source = step(tmp_path / "checkpoint_step_000002")
    report = ckptio.convert(source / "model.ckpt", f"{tmp_path}/out/", layout="hf")
    assert "config: n_head=12 by trainer_state.json" in report.notes
    config = config_of(tmp_path / "out")
    assert (config["n_head"], config["n_embd"]) == (12, 48)
    assert "n_kv_head" not in config


def test_what_is_said_on_the_command_line_counts_more(tmp_path: Path) -> None:
    source = step(tmp_path / "checkpoint_step_000002")
    report = ckptio.convert(source / "model.ckpt", f"{tmp_path}/out/", layout="hf", config={"n_head": 6})
    assert not any("trainer_state.json" in note for note in report.notes)
    assert config_of(tmp_path / "out")["n_head"] == 6


@pytest.mark.parametrize("changed", [{"n_embd": 768}, {"n_layer": 3}, {"vocab_size": 98}])
def test_a_trainer_of_another_shape_is_not_believed(changed: dict[str, int], tmp_path: Path) -> None:
    source = step(tmp_path / "checkpoint_step_000002", **changed)
    with pytest.raises(UnsupportedError, match="--config n_head=") as caught:
        ckptio.convert(source / "model.ckpt", f"{tmp_path}/out/", layout="hf")
    ((key, value),) = changed.items()
    (note,) = caught.value.__notes__
    assert note == f"trainer_state.json is not believed: by it the model has {key} {value}"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"config": {"n_head": 12, "num_attention_heads": 6}}'])
def test_a_file_that_says_nothing_is_passed_over(text: str, tmp_path: Path) -> None:
    source = step(tmp_path / "checkpoint_step_000002")
    (source / "trainer_state.json").write_text(text)
    with pytest.raises(UnsupportedError, match="--config n_head="):
        ckptio.convert(source / "model.ckpt", f"{tmp_path}/out/", layout="hf")


def test_another_name_takes_nothing_from_its_surroundings(tmp_path: Path) -> None:
    source = step(tmp_path / "checkpoint_step_000002")
    (source / "model.ckpt").rename(source / "mine.ckpt")
    with pytest.raises(UnsupportedError, match="--config n_head="):
        ckptio.convert(source / "mine.ckpt", f"{tmp_path}/out/", layout="hf")


def test_what_nobody_says_is_assumed_and_told(tmp_path: Path) -> None:
    bare = golden("infinitrain/runs/llama3_adam/ckpt/checkpoint_step_000002/model.ckpt")
    report = ckptio.convert(bare, f"{tmp_path}/out/", layout="hf", config={"n_head": 4, "norm_eps": 1e-6})
    (note,) = [note for note in report.notes if note.startswith("assumed")]
    assert "rope_theta=500000.0, block_size=8192, use_scaled_rope=False; pass --config" in note
    assert config_of(tmp_path / "out")["rope_theta"] == 500000.0
    whole = golden("llmc_llama3/llama3_L4H4KV2C16V96T16_branchlayout_bf16.bin")
    report = ckptio.convert(whole, f"{tmp_path}/out2/", layout="hf")
    assert not any(note.startswith("assumed") for note in report.notes)
    report = ckptio.convert(STEP / "model.ckpt", f"{tmp_path}/out3/", layout="hf", config={"n_head": 12})
    assert not any(note.startswith("assumed") for note in report.notes)
