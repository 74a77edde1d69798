"""Sets of shards with their index, written and read, and how all of it is recognised."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import ckptio
from ckptio import Confidence, CorruptCheckpointError
from ckptio.detect import choose_reader
from ckptio.format import Probe
from ckptio.registry import registry
from golden import all_golden, golden, golden_id
from independent_safetensors import entry, judge, pack

INDEX = "model.safetensors.index.json"
HUB = golden(f"hf/hub_save_torch_state_dict_st/{INDEX}").parent
TENSORS = {f"layer.{i}": np.full((4, 4), i, "<f4") for i in range(5)}


def reshard(source: Path, target: Path, size: object, **options: Any) -> None:
    given = {"max_shard_size": size}
    ckptio.convert(source, target, checkpoint_format="safetensors", options=given, **options)


def write(folder: Path, size: str = "128", **options: Any) -> Path:
    given = {"max_shard_size": size}
    ckptio.save(TENSORS, folder, checkpoint_format="safetensors", options=given, **options)
    return folder


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A copy of the golden set."""
    shutil.copytree(HUB, tmp_path / "hub")
    return tmp_path / "hub"


def test_the_set_of_huggingface_hub_is_written_with_its_bytes(tmp_path: Path) -> None:
    ckptio.convert(
        HUB, tmp_path / "copy", checkpoint_format="safetensors", options={"max_shard_size": "2.2KB"}
    )
    names = sorted(path.name for path in HUB.glob("model*"))
    assert sorted(os.listdir(tmp_path / "copy")) == names
    for name in names:
        # Only the line end after the index is ours.
        assert (tmp_path / "copy" / name).read_bytes().rstrip(b"\n") == (HUB / name).read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["copy"]


@pytest.mark.parametrize("path", all_golden("hf/*_sharded/*.index.json"), ids=golden_id)
def test_a_set_of_transformers_becomes_one_file_and_a_set_again(tmp_path: Path, path: Path) -> None:
    expected = {
        name: each for shard in path.parent.glob("*.safetensors") for name, each in judge(shard).items()
    }
    ckptio.convert(path, tmp_path / "one.safetensors")
    assert judge(tmp_path / "one.safetensors") == expected
    ckptio.convert(
        tmp_path / "one.safetensors",
        tmp_path / "set",
        checkpoint_format="safetensors",
        options={"max_shard_size": 30_000},
    )
    index = json.loads((tmp_path / "set" / INDEX).read_text())
    assert index["metadata"] == {"total_size": sum(len(data) for _, _, data in expected.values())}
    found = {file: judge(tmp_path / "set" / file) for file in set(index["weight_map"].values())}
    assert len(found) > 1
    assert {name: found[file][name] for name, file in index["weight_map"].items()} == expected
    assert sum(map(len, found.values())) == len(expected)
    for tensors in found.values():
        assert sum(len(data) for _, _, data in tensors.values()) <= 30_000 or len(tensors) == 1


def test_every_shard_is_a_file_for_transformers(tmp_path: Path) -> None:
    folder = write(tmp_path / "set")
    files = sorted(folder.glob("*.safetensors"))
    assert [path.name for path in files] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    for path in files:
        with safetensors.safe_open(path, "np") as library:
            assert library.metadata() == {"format": "pt"}
    loaded = {name: each for path in files for name, each in safetensors.numpy.load_file(path).items()}
    assert loaded.keys() == TENSORS.keys()
    assert all(np.array_equal(loaded[name], TENSORS[name]) for name in TENSORS)


def test_what_is_beside_the_tensors_stands_in_the_index(tmp_path: Path) -> None:
    leaves = {"step": 3, "nan": float("nan")}
    metadata = {"config": {"n_head": 2}, "note": "text", "total_size": "mine"}
    write(tmp_path / "set", metadata=metadata, leaves=leaves, aliases={"tied": "layer.0"})
    assert os.listdir(tmp_path) == ["set"]
    for path in (tmp_path / "set", tmp_path / "set" / INDEX):
        with ckptio.open(path) as checkpoint:
            assert checkpoint.metadata == metadata
            assert repr(dict(checkpoint.leaves)) == repr(leaves)
            assert dict(checkpoint.aliases) == {"tied": "layer.0"}
    # In one file, it stands in that.
    ckptio.convert(
        tmp_path / "set", tmp_path / "d", checkpoint_format="safetensors", options={"max_shard_size": "1GB"}
    )
    assert os.listdir(tmp_path / "d") == ["model.safetensors"]
    with ckptio.open(tmp_path / "d") as checkpoint:
        assert checkpoint.metadata == metadata
        assert dict(checkpoint.aliases) == {"tied": "layer.0"}


def test_ties_in_full_are_recorded_beside_the_directory(tmp_path: Path) -> None:
    options = {"max_shard_size": "100", "ties": "full"}
    ckptio.save(
        TENSORS,
        tmp_path / "set",
        aliases={"tied": "layer.0"},
        options=options,
        checkpoint_format="safetensors",
    )
    assert sorted(os.listdir(tmp_path)) == ["set", "set.meta.json"]
    (tmp_path / "set" / "config.json").write_text("the user's own file changes nothing")
    with ckptio.open(tmp_path / "set") as checkpoint:
        assert dict(checkpoint.aliases) == {"tied": "layer.0"}
        assert checkpoint.read("tied").tobytes() == TENSORS["layer.0"].tobytes()


def test_a_directory_is_overwritten_on_request_and_only_the_old_set_in_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "set")
    (folder / "config.json").write_text("mine")
    with pytest.raises(FileExistsError, match="--overwrite"):
        write(folder)
    write(folder, "64", overwrite=True)
    names = sorted(os.listdir(folder))
    assert names == ["config.json", *(f"model-0000{i}-of-00005.safetensors" for i in range(1, 6)), INDEX]
    assert ckptio.load(folder).keys() == TENSORS.keys()


def test_a_set_is_sharded_anew_in_its_place(tmp_path: Path) -> None:
    folder = write(tmp_path / "set")
    reshard(folder / INDEX, folder, "64", overwrite=True)
    assert len(list(folder.glob("*.safetensors"))) == 5
    loaded = ckptio.load(folder)
    assert all(np.array_equal(loaded[name], TENSORS[name]) for name in TENSORS)


def test_a_file_is_no_place_for_shards_and_a_directory_none_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(ckptio.OptionError, match="shards make a directory"):
        write(tmp_path / "x.safetensors")
    (tmp_path / "d").mkdir()
    with pytest.raises(IsADirectoryError, match="name a file in it"):
        ckptio.save(TENSORS, tmp_path / "d", checkpoint_format="safetensors", overwrite=True)
    with pytest.raises(ckptio.OptionError, match="bad value '5XB' for -o max_shard_size: not a size"):
        write(tmp_path / "new", "5XB")
    assert os.listdir(tmp_path) == ["d"]
    assert os.listdir(tmp_path / "d") == []


def test_the_flag_of_the_command_line(tmp_path: Path) -> None:
    target = tmp_path / "set"
    args = [
        "convert",
        str(HUB),
        str(target),
        "--checkpoint_format",
        "safetensors",
        "--max_shard_size",
        "2.2KB",
    ]
    done = subprocess.run([sys.executable, "-m", "ckptio", *args], capture_output=True, text=True, check=True)
    assert "7 tensors: 6 copied, 1 tied" in done.stdout
    assert len(list(target.glob("model-0000?-of-00003.safetensors"))) == 3
    args = ["convert", str(HUB), str(tmp_path / "x.ckpt"), "--max-shard-size=1GB"]
    done = subprocess.run([sys.executable, "-m", "ckptio", *args], capture_output=True, text=True)
    assert done.returncode == 1
    assert "'statedict' has no option 'max_shard_size'" in done.stderr


# Damage to a set


def test_a_missing_shard(hub: Path) -> None:
    (hub / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CorruptCheckpointError, match="1 of its 3 shards are missing:\n  model-00002"):
        ckptio.open(hub)


def test_a_tensor_that_the_index_does_not_know_and_one_that_is_not_there(hub: Path) -> None:
    index = json.loads((hub / INDEX).read_text())
    index["weight_map"]["other"] = index["weight_map"].pop("tied_a")
    index["metadata"] = {"total_size": 1}
    (hub / INDEX).write_text(json.dumps(index))
    with pytest.raises(CorruptCheckpointError) as caught:
        ckptio.open(hub)
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "'other' is not in model-00003-of-00003.safetensors",
        "'tied_a' in model-00003-of-00003.safetensors is not in the index",
        "total_size is 1, but the tensors have 5656 bytes",
    ]


def test_a_damaged_shard_is_named(hub: Path) -> None:
    path = hub / "model-00003-of-00003.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CorruptCheckpointError, match=r"model-00003-of-00003\.safetensors: "):
        ckptio.open(hub)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_an_index_never_leads_out_of_its_directory(hub: Path, name: str) -> None:
    (hub.parent / "secret.safetensors").write_bytes(pack({"tied_a": entry("U8", [1], 0, 1)}, b"1"))
    index = json.loads((hub / INDEX).read_text())
    index["weight_map"]["tied_a"] = name
    (hub / INDEX).write_text(json.dumps(index))
    with pytest.raises(CorruptCheckpointError, match="must be a plain file name beside the index"):
        ckptio.open(hub)


def test_a_shard_that_changes_while_it_is_read_is_noticed(hub: Path) -> None:
    with ckptio.open(hub) as checkpoint:
        checkpoint.check_unchanged()
        os.utime(hub / "model-00002-of-00003.safetensors", ns=(1, 1))
        with pytest.raises(ckptio.ChangedCheckpointError, match="model-00002"):
            checkpoint.check_unchanged()


# Recognition


def confidence(path: Path) -> Confidence:
    probe = Probe(path)
    try:
        return registry().load("safetensors").match(probe).confidence
    finally:
        probe.close()


@pytest.mark.parametrize("path", all_golden("**/*.safetensors"), ids=golden_id)
@pytest.mark.parametrize("suffix", ["", ".bin", ".ckpt", ".json"])
def test_files_are_told_by_their_content(tmp_path: Path, path: Path, suffix: str) -> None:
    (tmp_path / f"x{suffix}").symlink_to(path)
    assert choose_reader(tmp_path / f"x{suffix}", None, registry()).format.name == "safetensors"


def test_an_index_is_told_by_its_content(tmp_path: Path) -> None:
    shutil.copy(HUB / INDEX, tmp_path / "blob")
    assert confidence(tmp_path / "blob") is Confidence.SURE
    (tmp_path / "torch").write_text('{"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}')
    assert confidence(tmp_path / "torch") is Confidence.NO
    (tmp_path / INDEX).write_text("{")
    assert confidence(tmp_path / INDEX) is Confidence.NAME


def test_directories(tmp_path: Path) -> None:
    assert confidence(tmp_path) is Confidence.NO
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert confidence(tmp_path) is Confidence.NO
    with pytest.raises(FileNotFoundError, match="no whole .safetensors file"):
        ckptio.open(tmp_path, checkpoint_format="safetensors")
    (tmp_path / "a.safetensors").write_bytes(pack({}))
    assert confidence(tmp_path) is Confidence.SURE
    ckptio.open(tmp_path).close()
    (tmp_path / "b.safetensors").touch()
    assert confidence(tmp_path) is Confidence.NAME
    with pytest.raises(ckptio.UnsupportedError, match=r"several checkpoints; name one of them:\n  a\.saf"):
        ckptio.open(tmp_path)
    shutil.copytree(HUB, tmp_path, dirs_exist_ok=True)
    assert confidence(tmp_path) is Confidence.SURE
    with ckptio.open(tmp_path) as checkpoint:
        assert len(checkpoint) == 7


def test_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HUB)
    for path in (".", INDEX):
        with ckptio.open(path) as checkpoint:
            assert len(checkpoint) == 7


EVERY = [path for path in all_golden("**/*.*") if path.is_file()]


@pytest.mark.parametrize("path", EVERY, ids=golden_id)
def test_no_other_golden_file_is_taken_for_one(path: Path) -> None:
    ours = path.suffix == ".safetensors" or path.name == INDEX
    assert (confidence(path) is Confidence.SURE) == ours
