"""A model's folder that is overwritten: all of the old one, whatever fails, or all of the new one."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckptio
from ckptio import publishing
from ckptio.cli import main
from crashing import CrashError, Watch
from hub import load_model, make_model, to_folder

SHARDED, SINGLE = "20KB", "5GB"
TOKENIZER = {"tokenizer.json": "{}", "tokenizer_config.json": "{}"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def made(folder: Path, kind: str, size: str, **files: str) -> Path:
    make_model(kind).save_pretrained(folder, max_shard_size=size)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The model that is overwritten, with files that the new one has and files that it has not."""
    files = {name: f"old {name}" for name in (*TOKENIZER, "added_tokens.json", "README.md")}
    return made(tmp_path / "old", "llama", SHARDED, **files)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return made(tmp_path / "new", "gpt2", SINGLE, **TOKENIZER)


@pytest.mark.parametrize("size", [SHARDED, SINGLE])
@pytest.mark.parametrize("before", [SHARDED, SINGLE])
def test_whatever_fails_the_folder_is_all_old_or_all_new(
    tmp_path: Path, old: Path, new: Path, before: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before == SINGLE:
        shutil.rmtree(old)
        made(old, "llama", SINGLE, **dict.fromkeys((*TOKENIZER, "vocab.json", "README.md"), "old"))
    (old / "generation_config.json").write_text('{"max_new_tokens": 3}')
    watch = Watch(monkeypatch)
    shutil.copytree(old, tmp_path / "clean")
    to_folder(new, tmp_path / "clean", overwrite=True, options={"max_shard_size": size})
    whole = contents(tmp_path / "clean")
    kept = {"README.md"}
    assert {name for name in whole if whole[name] == contents(old).get(name)} == kept
    assert not {"added_tokens.json", "vocab.json"} & whole.keys()
    steps = len(watch.calls)
    place = tmp_path / "place"
    place.mkdir()
    results = []
    for number in range(steps):
        for when in ("before", "after"):
            folder = place / "folder"
            shutil.copytree(old, folder)
            watch.calls.clear()
            watch.crash = (number, when)
            with pytest.raises(CrashError):
                to_folder(new, folder, overwrite=True, options={"max_shard_size": size})
            watch.crash = None
            found = contents(folder)
            assert found in (contents(old), whole), watch.calls[number]
            assert os.listdir(place) == ["folder"]
            results.append(found == whole)
            shutil.rmtree(folder)
    # The only failure that is told of a folder that is new is that of the last force to the disk.
    assert results == sorted(results)
    assert sum(results) <= 2


def test_a_full_disk_leaves_the_old_model(tmp_path: Path, old: Path, new: Path) -> None:
    before = contents(old)
    assert max(len(data) for name, data in contents(new).items() if "token" in name) < 10_000
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "ckptio",
            "convert",
            str(new),
            str(old),
            "-f",
            "--checkpoint_format=safetensors",
        ],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"error: {old}: File too large\n"
    assert contents(old) == before
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


def test_a_refusal_leaves_the_old_model(tmp_path: Path, old: Path) -> None:
    before = contents(old)
    ckptio.save({"a": np.ones(2, "<f4")}, tmp_path / "other.safetensors")
    flags = ["--checkpoint_format=safetensors", "--layout=hf", "-f"]
    assert main(["convert", str(tmp_path / "other.safetensors"), str(old), *flags]) == 1
    assert contents(old) == before


def test_the_new_model_loads_and_its_report_says_what_went(
    old: Path, new: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (new / "generation_config.json").unlink()
    report = to_folder(new, old, overwrite=True)
    assert report.notes == ("removed from TARGET, as the old model's: added_tokens.json",)
    (old / "tokenizer.json").unlink()
    found = load_model(old, caplog)
    assert found.config.model_type == "gpt2"
    assert found.generation_config.eos_token_id == 2
    assert (old / "README.md").read_text() == "old README.md"


def test_an_old_tokenizer_stays_where_no_new_one_comes_and_the_report_says_so(
    tmp_path: Path, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = made(tmp_path / "bare", "gpt2", SINGLE)
    (bare / "generation_config.json").unlink()
    config = json.loads((bare / "config.json").read_bytes())
    for key in ("bos_token_id", "eos_token_id"):
        del config[key]
    (bare / "config.json").write_text(json.dumps(config))
    (old / "pytorch_model.bin").write_bytes(b"weights of another format")
    before = contents(old)
    assert main(["convert", str(bare), str(old), "-f", "--checkpoint_format=safetensors"]) == 0
    out = capsys.readouterr().out
    assert "  no tokenizer: SOURCE has none of its files; pass --tokenizer DIR\n" in out
    assert "  removed from TARGET, as the old model's: generation_config.json\n" in out
    stays = ["added_tokens.json", "pytorch_model.bin", "tokenizer.json", "tokenizer_config.json"]
    assert f"  kept in TARGET as it was: {', '.join(stays)}\n" in out
    found = contents(old)
    assert {name: found.get(name) for name in stays} == {name: before[name] for name in stays}
    assert "generation_config.json" not in found


def test_without_a_config_of_its_own_nothing_beside_the_weights_is_touched(tmp_path: Path, old: Path) -> None:
    ckptio.save({"a": np.ones(2, "<f4")}, tmp_path / "other.safetensors")
    before = contents(old)
    report = ckptio.convert(
        tmp_path / "other.safetensors", old, checkpoint_format="safetensors", overwrite=True
    )
    assert report.notes == ("kept in TARGET as it was: config.json",)
    weights = {name for name in before if ".safetensors" in name}
    found = contents(old)
    assert found.keys() == before.keys() - weights | {"model.safetensors"}
    assert all(found[name] == before[name] for name in before.keys() - weights)


def test_a_model_gets_the_name_that_transformers_looks_for(
    tmp_path: Path, new: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ckptio.save({"a": np.ones(2, "<f4")}, folder / "mine.safetensors")
    for name in TOKENIZER:
        (new / name).unlink()
    to_folder(new, folder, overwrite=True)
    names = ["config.json", "generation_config.json", "model.safetensors"]
    assert sorted(os.listdir(folder)) == names
    load_model(folder, caplog)


def test_a_file_and_an_index_under_the_usual_names_both_go(tmp_path: Path, old: Path, new: Path) -> None:
    shutil.copy(new / "model.safetensors", old)
    for size in (SHARDED, SINGLE):
        folder = tmp_path / size
        shutil.copytree(old, folder)
        to_folder(new, folder, overwrite=True, options={"max_shard_size": size})
        found = {name for name in os.listdir(folder) if ".safetensors" in name}
        assert ("model.safetensors" in found) == (size == SINGLE)
        index = folder / "model.safetensors.index.json"
        named = set(json.loads(index.read_bytes())["weight_map"].values()) if index.exists() else set()
        assert found == named | ({index.name} if named else {"model.safetensors"})


def test_a_system_without_an_exchange_of_names(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "exchange", lambda one, other: False)
    to_folder(new, old, overwrite=True)
    found = contents(old)
    assert {name: found[name] for name in TOKENIZER} == {
        name: text.encode() for name, text in TOKENIZER.items()
    }
    assert json.loads(found["config.json"])["model_type"] == "gpt2"
    assert not any("-of-" in name for name in found)


def test_a_model_is_written_anew_in_its_own_folder(
    old: Path, new: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    before = contents(old)
    index = old / "model.safetensors.index.json"
    report = to_folder(index, old, overwrite=True, dtype="bf16")
    assert report.notes == ()
    found = contents(old)
    beside = {name for name in before if ".safetensors" not in name and name != "config.json"}
    assert found.keys() == beside | {"config.json", "model.safetensors"}
    assert {name: found[name] for name in beside} == {name: before[name] for name in beside}
    # The tokenizer of the target, by name, stays whole too.
    for name in TOKENIZER:
        (new / name).unlink()
    assert to_folder(new, old, overwrite=True, tokenizer=old).notes == ()
    found = contents(old)
    assert {name: found[name] for name in beside if "token" in name} == {
        name: before[name] for name in beside if "token" in name
    }
    for name in beside:
        (old / name).unlink()
    assert load_model(old, caplog).dtype == torch.float32


@pytest.mark.parametrize(
    "name",
    ["model-00002-of-00003.safetensors", "model.safetensors.index.json", "config.json", "tokenizer.json"],
)
@pytest.mark.parametrize("by_index", [False, True])
def test_no_file_of_the_source_is_overwritten(
    old: Path, name: str, by_index: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    # A folder named as a whole, or by its index: the target is another file of it all the same.
    source = old / "model.safetensors.index.json" if by_index else old
    before = contents(old)
    count = sum(each.startswith("model-") for each in before)
    target = old / name.replace("00003", f"{count:05}")
    status = main(["convert", str(source), str(target), "--checkpoint_format", "npz", "--overwrite"])
    assert status == 1
    same = by_index and target == source
    expected = "the same file" if same else f"is a file of the source, {source}; name another target"
    assert expected in capsys.readouterr().err
    assert contents(old) == before


def test_another_file_in_the_folder_of_the_source_may_be_overwritten(old: Path) -> None:
    for name in ("README.md", "pytorch_model.bin"):
        ckptio.convert(old, old / name, checkpoint_format="torch", overwrite=True)
        assert ckptio.load(old / name).keys() == ckptio.load(old).keys()
