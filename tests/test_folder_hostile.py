"""Hostile folders (H4, H5) of safetensors and of torch, by the command line: nothing leads out of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

import ckptio
from ckptio.cli import main

Arrays = Mapping[str, npt.NDArray[Any]]
ONE, TWO = {"a": np.arange(4, dtype="<f4")}, {"b": np.arange(6, dtype="<f4").reshape(2, 3)}
BYTES = 16 + 24


def save_safetensors(arrays: Arrays, path: Path) -> None:
    safetensors.numpy.save_file(dict(arrays), path, {"format": "pt"})


def save_torch(arrays: Arrays, path: Path) -> None:
    import torch

    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


class Set:
    """A folder of two shards; each test spoils one thing in it."""

    def __init__(self, folder: Path, stem: str, suffix: str, save: Callable[[Arrays, Path], None]) -> None:
        self.folder, self.suffix, self.save = folder, suffix, save
        self.shards = [f"{stem}-0000{number}-of-00002{suffix}" for number in (1, 2)]
        self.index = folder / f"{stem}{suffix}.index.json"
        folder.mkdir(parents=True)
        save(ONE, folder / self.shards[0])
        save(TWO, folder / self.shards[1])
        self.write_index({"a": self.shards[0], "b": self.shards[1]}, BYTES)

    def write_index(self, weight_map: Mapping[str, Any], total: int = BYTES) -> None:
        content = {"metadata": {"total_size": total}, "weight_map": weight_map}
        self.index.write_text(json.dumps(content))


@pytest.fixture(params=["safetensors", "torch"])
def spoiled(request: pytest.FixtureRequest, tmp_path: Path) -> Set:
    stem, suffix, save = {
        "safetensors": ("model", ".safetensors", save_safetensors),
        "torch": ("pytorch_model", ".bin", save_torch),
    }[request.param]
    return Set(tmp_path / "deep/er/in", stem, suffix, save)


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def refused(made: Set, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Convert, inspect and verify a folder, by its name and by its index; return the lines of the refusal."""
    before = tree(tmp_path)
    (tmp_path / "out").mkdir(exist_ok=True)
    messages = set()
    for source in (str(made.folder), str(made.index)):
        for command in (
            ["convert", source, f"{tmp_path}/out/new/", "--checkpoint_format=safetensors"],
            ["convert", source, f"{tmp_path}/out/new.npz"],
            ["inspect", source],
            ["verify", source],
        ):
            assert main(command) == 1, command
            captured = capsys.readouterr()
            messages.add((captured.err or captured.out).split("error: ")[-1])
    assert [name for name in tree(tmp_path) if name != "out"] == before
    (message,) = messages
    return message.splitlines()


def test_the_set_is_sound_until_it_is_spoiled(spoiled: Set, tmp_path: Path) -> None:
    assert main(["convert", str(spoiled.folder), str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as found:
        assert {name: found[name].tolist() for name in found.files} == {
            name: array.tolist() for name, array in {**ONE, **TWO}.items()
        }


@pytest.mark.parametrize(
    "lead", ["../../x", "/abs", "..", ".", "", "sub/x", "nul\0", "back\\slash", 3, None, ["x"]]
)
def test_an_index_never_leads_out_of_its_folder(
    spoiled: Set, tmp_path: Path, lead: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # What it leads to is there, and would do.
    (spoiled.folder / "sub").mkdir()
    for place in (tmp_path / "deep", spoiled.folder / "sub"):
        spoiled.save(TWO, place / "x")
    if lead == "/abs":
        lead = str(tmp_path / "deep/x")
    spoiled.write_index({"a": spoiled.shards[0], "b": lead})
    first, second = refused(spoiled, tmp_path, capsys)
    assert first == f"{spoiled.index}: a shard must be a plain file name beside the index, not:"
    assert second.strip() == repr(lead)


def test_a_missing_shard(spoiled: Set, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (spoiled.folder / spoiled.shards[1]).unlink()
    lines = refused(spoiled, tmp_path, capsys)
    assert lines == [f"{spoiled.index}: 1 of its 2 shards are missing:", f"  {spoiled.shards[1]}"]


def test_a_tensor_that_the_index_does_not_know(
    spoiled: Set, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled.save({**TWO, "c": np.ones(1, "<f4")}, spoiled.folder / spoiled.shards[1])
    lines = refused(spoiled, tmp_path, capsys)
    assert f"  'c' in {spoiled.shards[1]} is not in the index" in lines


def test_a_tensor_that_is_in_no_shard(
    spoiled: Set, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled.write_index({"a": spoiled.shards[0], "b": spoiled.shards[1], "c": spoiled.shards[1]})
    assert f"  'c' is not in {spoiled.shards[1]}" in refused(spoiled, tmp_path, capsys)


@pytest.mark.parametrize("total", [BYTES - 1, BYTES + 1, 0, 1 << 80])
def test_a_wrong_total_size(
    spoiled: Set, tmp_path: Path, total: int, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled.write_index({"a": spoiled.shards[0], "b": spoiled.shards[1]}, total)
    lines = refused(spoiled, tmp_path, capsys)
    assert f"  total_size is {total}, but the tensors have {BYTES} bytes" in lines


@pytest.mark.parametrize("name", ["config.json", "the index", "a" * 300])
def test_a_shard_that_is_none(
    spoiled: Set, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (spoiled.folder / "config.json").write_text('{"model_type": "gpt2"}')
    name = spoiled.index.name if name == "the index" else name
    spoiled.write_index({"a": spoiled.shards[0], "b": name})
    assert name[:80] in refused(spoiled, tmp_path, capsys)[0]


def test_a_folder_where_a_file_is_meant(
    spoiled: Set, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spoiled.folder / spoiled.shards[1]
    path.unlink()
    path.mkdir()
    lines = refused(spoiled, tmp_path, capsys)
    assert lines == [f"{spoiled.index}: 1 of its 2 shards are missing:", f"  {spoiled.shards[1]}"]


# Names of tensors


NAMES = [
    "a/b",
    "../../x",
    "/abs/x",
    "..",
    ".",
    "nul\0",
    "n" * 300,
    "new\nline",
    "\x1b[31mred",
    "~",
    "a~1b",
    "ü" * 200,
]


@pytest.mark.parametrize("size", ["8", "5GB"])
def test_a_name_never_leads_out_of_the_folder_that_is_written(
    spoiled: Set, tmp_path: Path, size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = {name: np.full(2, number, "<f4") for number, name in enumerate(NAMES)}
    for path in spoiled.folder.iterdir():
        path.unlink()
    whole = {".bin": "pytorch_model.bin", ".safetensors": "model.safetensors"}[spoiled.suffix]
    spoiled.save(arrays, spoiled.folder / whole)
    before = tree(tmp_path)
    flags = ["--checkpoint_format=safetensors", f"--max_shard_size={size}"]
    assert main(["convert", str(spoiled.folder), f"{tmp_path}/out/", *flags]) == 0
    assert "\x1b" not in capsys.readouterr().out
    shards = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(shards) == (len(NAMES) if size == "8" else 1)
    written = [str(path.relative_to(tmp_path)) for path in shards]
    index = ["out/model.safetensors.index.json"] if size == "8" else []
    assert tree(tmp_path) == sorted([*before, "out", *written, *index])
    found: dict[str, Any] = {}
    for path in shards:
        found |= safetensors.numpy.load_file(path)
    # Keys of a dict of torch are escaped, as in every format that nests.
    names = {name.replace("~", "~0").replace("/", "~1"): name for name in NAMES}
    if spoiled.suffix == ".safetensors":
        names = {name: name for name in NAMES}
    assert {names[name]: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    assert ckptio.load(tmp_path / "out").keys() == names.keys()


# Files that stand where a folder is overwritten


def test_an_old_index_never_leads_to_what_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "deep/folder"
    made = Set(folder, "model", ".safetensors", save_safetensors)
    victims = [tmp_path / "victim.safetensors", folder / "sub/victim.safetensors"]
    for victim in victims:
        victim.parent.mkdir(exist_ok=True)
        victim.write_bytes(b"mine")
    (folder / "mine.safetensors").mkdir()
    (folder / "mine.safetensors/precious").write_bytes(b"mine")
    ckptio.save(ONE, tmp_path / "one.safetensors")
    for lead in ("../../victim.safetensors", str(victims[0]), "sub/victim.safetensors", "mine.safetensors"):
        made.write_index({"a": lead})
        ckptio.convert(tmp_path / "one.safetensors", folder, checkpoint_format="safetensors", overwrite=True)
        assert [victim.read_bytes() for victim in victims] == [b"mine"] * 2
        assert (folder / "mine.safetensors/precious").read_bytes() == b"mine"
        assert ckptio.load(folder).keys() == {"a"}
        (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"]
)
def test_a_directory_under_the_name_of_a_file_is_in_the_way_and_stays(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    (folder / name).mkdir(parents=True)
    (folder / name / "precious").write_bytes(b"mine")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    config = {"model_type": "gpt2", "eos_token_id": 2}
    ckptio.save(ONE, tmp_path / "one.safetensors", metadata={"config": config})
    with pytest.raises(OSError, match=f"{name} is in the way"):
        ckptio.convert(
            tmp_path / "one.safetensors",
            folder,
            checkpoint_format="safetensors",
            overwrite=True,
            tokenizer=tokenizer,
        )
    assert tree(folder) == [name, f"{name}/precious"]


def test_companions_are_files_and_links_of_a_cache(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    made = Set(folder, "model", ".safetensors", save_safetensors)
    assert made.index.is_file()
    (folder / "config.json").write_text('{"model_type": "other"}')
    (folder / "vocab.json").mkdir()
    os.mkfifo(folder / "merges.txt")
    (folder / "tokenizer.model").symlink_to("nowhere")
    (tmp_path / "blob").write_text("{}")
    (folder / "tokenizer.json").symlink_to(tmp_path / "blob")
    ckptio.convert(folder, f"{tmp_path}/out/", checkpoint_format="safetensors")
    assert tree(tmp_path / "out") == ["config.json", "model.safetensors", "tokenizer.json"]
    assert not (tmp_path / "out/tokenizer.json").is_symlink()
