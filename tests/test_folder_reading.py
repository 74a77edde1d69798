"""Which weights of a folder are read, and where its config counts: as transformers does it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from ckptio import UnsupportedError
from ckptio.cli import main
from golden import golden
from hub import load_model, make_model, to_folder

SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
TORCH, TORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def torch_set(folder: Path, weights: dict[str, Any], sharded: bool) -> None:
    """Write weights as transformers 4 did with ``safe_serialization=False``."""
    import torch

    files = {TORCH: weights}
    if sharded:
        names = list(weights)
        halves = (names[: len(names) // 2], names[len(names) // 2 :])
        files = {
            f"pytorch_model-0000{number}-of-00002.bin": {name: weights[name] for name in half}
            for number, half in enumerate(halves, 1)
        }
        weight_map = {name: file for file, part in files.items() for name in part}
        (folder / TORCH_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for file, part in files.items():
        torch.save(part, folder / file)


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A folder as the hub has them, whose weights are told apart by their values: see ``NORM``."""
    folder = tmp_path / "hub"
    for value, size in ((2.0, "20KB"), (1.0, "5GB")):
        model = make_model("llama", tied=False)
        model.model.norm.weight.data.fill_(value)
        model.save_pretrained(folder / "made", max_shard_size=size)
        shutil.copytree(folder / "made", folder, dirs_exist_ok=True)
        shutil.rmtree(folder / "made")
    for value, sharded in ((3.0, False), (4.0, True)):
        model.model.norm.weight.data.fill_(value)
        torch_set(folder, dict(model.state_dict()), sharded)
    for name in ("tf_model.h5", "flax_model.msgpack", "model.onnx", "training_args.bin", "README.md"):
        (folder / name).write_bytes(b"none of these is read")
    for name in ("adapter_model.safetensors", "consolidated.safetensors", "model.fp16.safetensors"):
        ckptio.save({"model.norm.weight": np.full(32, 9.0, "<f4")}, folder / name)
    (folder / "original").mkdir()
    (folder / "original/params.json").write_text('{"dim": 32}')
    return folder


NORM = {SAFE: 1.0, SAFE_INDEX: 2.0, TORCH: 3.0, TORCH_INDEX: 4.0}
"""The first element of the last norm in each of the weights, in the order of transformers."""


def norm(path: Path, **options: Any) -> float:
    with ckptio.open(path, **options) as checkpoint:
        return float(checkpoint.read("model.norm.weight")[0])


def test_the_first_in_the_order_of_transformers_is_read(hub: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    for name, value in NORM.items():
        assert norm(hub) == value, name
        theirs = AutoModelForCausalLM.from_pretrained(hub).model.norm.weight
        assert torch.equal(theirs, torch.full((32,), value))
        (hub / name).unlink()
    with pytest.raises(UnsupportedError, match=r"several checkpoints") as caught:
        ckptio.open(hub)
    listed = ["adapter_model.safetensors", "consolidated.safetensors", "model.fp16.safetensors"]
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == listed


def test_a_format_by_name_takes_its_own_first(hub: Path) -> None:
    assert norm(hub, checkpoint_format="torch") == NORM[TORCH]
    assert norm(hub, checkpoint_format="safetensors") == NORM[SAFE]
    (hub / TORCH).unlink()
    assert norm(hub, checkpoint_format="torch") == NORM[TORCH_INDEX]
    for name, value in NORM.items():
        if name != TORCH:
            assert norm(hub / name) == value


def test_inspect_says_why(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    passed = f"{SAFE_INDEX}, {TORCH}, {TORCH_INDEX}, adapter_model.safetensors, consolidated.safetensors"
    for first, expected in (
        (SAFE, f"safetensors (a directory that holds {SAFE}, which transformers takes before {passed}, "),
        (SAFE_INDEX, f"safetensors (a directory that holds {SAFE_INDEX}, which transformers takes before "),
        (TORCH, f"torch (a directory that holds {TORCH}, which transformers takes before {TORCH_INDEX})"),
        (TORCH_INDEX, f"torch (a directory that holds {TORCH_INDEX})"),
    ):
        assert main(["inspect", str(hub)]) == 0
        assert expected in capsys.readouterr().out
        (hub / first).unlink()


def test_the_command_line_takes_the_other_on_request(hub: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    assert main(["convert", str(hub), str(out), "--source_format=torch"]) == 0
    assert np.load(out)["model.norm.weight"][0] == NORM[TORCH]


@pytest.mark.parametrize("name", NORM)
def test_a_file_of_the_folder_knows_what_the_folder_knows(hub: Path, tmp_path: Path, name: str) -> None:
    (hub / "tokenizer.json").write_text("the model's")
    (hub / "generation_config.json").write_text('{"max_new_tokens": 3}')
    source, flags = str(hub / name), ["--checkpoint_format=llmc"]
    assert main(["convert", source, str(tmp_path / "a.bin"), *flags]) == 0
    with ckptio.open(tmp_path / "a.bin") as found:
        assert found.metadata["config"]["n_head"] == 4
        assert found.metadata["config"]["n_kv_head"] == 2
    report = to_folder(hub / name, tmp_path / "out")
    assert report.notes == ()
    for companion in ("tokenizer.json", "generation_config.json", "config.json"):
        ours = (tmp_path / "out" / companion).read_bytes()
        assert ours.strip() == (hub / companion).read_bytes().strip()


def test_a_file_and_its_folder_give_the_same_bytes(tmp_path: Path) -> None:
    folder = golden("hf/llama_fp32_sharded/config.json").parent
    for source in (folder, folder / SAFE_INDEX):
        ckptio.convert(source, tmp_path / "a.bin", checkpoint_format="llmc", overwrite=True)
        expected = golden("llmc_llama3/fromHF_llama_fp32_masterlayout.bin")
        assert (tmp_path / "a.bin").read_bytes() == expected.read_bytes()


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "mine.safetensors", "training_args.bin"])
def test_other_names_take_nothing_from_their_surroundings(hub: Path, tmp_path: Path, name: str) -> None:
    (hub / "tokenizer.json").write_text("the model's")
    if not (hub / name).exists() or name.endswith(".bin"):
        shutil.copy(hub / (TORCH if name.endswith(".bin") else SAFE), hub / name)
    with ckptio.open(hub / name) as found:
        assert "config" not in found.metadata
    if name != "adapter_model.safetensors":
        numbers = {"n_head": 4, "rope_theta": 1e4, "use_scaled_rope": False, "norm_eps": 1e-6}
        report = to_folder(hub / name, tmp_path / "out", config={**numbers, "block_size": 16})
        assert not (tmp_path / "out/tokenizer.json").exists()
        assert any("--tokenizer DIR" in note for note in report.notes)


def test_a_config_that_is_not_transformers_or_not_the_file_s_is_left_alone(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    config = {"n_head": 2}
    ckptio.save({"a": np.ones(2, "<f4")}, tmp_path / SAFE)
    (tmp_path / "config.json").write_text('{"n_head": 12}')
    with ckptio.open(tmp_path / SAFE) as found:
        assert "config" not in found.metadata
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_head": 12}')
    with ckptio.open(tmp_path / SAFE) as found:
        assert found.metadata["config"] == {"model_type": "gpt2", "n_head": 12}
    # What a file says itself stands.
    ckptio.save({"a": np.ones(2, "<f4")}, tmp_path / SAFE, metadata={"config": config}, overwrite=True)
    with ckptio.open(tmp_path / SAFE) as found:
        assert found.metadata["config"] == config
    assert not recwarn.list
    ckptio.save({"a": np.ones(2, "<f4")}, tmp_path / SAFE, overwrite=True)
    (tmp_path / "config.json").write_text("{")
    with pytest.warns(UserWarning, match="ignored: .*config.json"), ckptio.open(tmp_path / SAFE) as found:
        assert "config" not in found.metadata


def test_links_of_a_cache_lead_to_the_config_beside_the_link(tmp_path: Path) -> None:
    """The hub's cache has blobs elsewhere, and a folder of links to them."""
    folder = golden("hf/gpt2_fp32_single/config.json").parent
    snapshot, blobs = tmp_path / "snapshots/1", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    shutil.copytree(folder, blobs)
    for each in (SAFE, "config.json"):
        (blobs / each).rename(blobs / f"{each}.blob")
        (snapshot / each).symlink_to(blobs / f"{each}.blob")
    for path in (snapshot, snapshot / SAFE):
        with ckptio.open(path) as found:
            assert found.metadata["config"]["model_type"] == "gpt2"


@pytest.mark.parametrize("name", [TORCH, TORCH_INDEX])
def test_a_folder_of_torch_becomes_one_that_transformers_loads_without_a_word(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    model = make_model("gpt2")
    model.save_pretrained(tmp_path / "hub")
    (tmp_path / "hub" / SAFE).unlink()
    weights = model.state_dict()
    torch_set(tmp_path / "hub", dict(weights), sharded=name == TORCH_INDEX)
    to_folder(tmp_path / "hub", tmp_path / "out")
    found = load_model(tmp_path / "out", caplog).state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[each], weights[each]) for each in weights)


def test_a_checkpoint_of_transformers_trainer_is_a_folder_of_a_model(
    hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (hub / "trainer_state.json").write_text('{"global_step": 7, "epoch": 0.1, "log_history": []}')
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "scaler.pt"):
        (hub / name).write_bytes(b"torch's")
    assert main(["inspect", str(hub)]) == 0
    assert f"a directory that holds {SAFE}, " in capsys.readouterr().out


def test_a_config_that_names_other_weights_is_warned_of_and_not_written_again(
    hub: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = json.loads((hub / "config.json").read_bytes())
    (hub / SAFE).rename(hub / "mine.safetensors")
    (hub / "config.json").write_text(json.dumps({**config, "transformers_weights": "mine.safetensors"}))
    assert load_model(hub, caplog).model.norm.weight[0] == NORM[SAFE]
    with pytest.warns(
        UserWarning, match=f"'mine.safetensors' has the weights by .*, but {SAFE_INDEX} is read"
    ):
        assert norm(hub) == NORM[SAFE_INDEX]
    with pytest.warns(UserWarning, match="name the file that is meant"):
        to_folder(hub, tmp_path / "out")
    assert load_model(tmp_path / "out", caplog).model.norm.weight[0] == NORM[SAFE_INDEX]
