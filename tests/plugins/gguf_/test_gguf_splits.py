"""Models in several files, as the package gguf splits them, read as the one file that it writes otherwise."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

import ckptio
from ckptio import ChangedCheckpointError, Confidence, LossyConversionError, OptionError, UnsupportedError
from ckptio.cli import main
from ckptio.detect import choose_reader
from ckptio.registry import registry
from gguf_files import raw

LAYOUTS: dict[str, dict[str, Any]] = {
    "two tensors a file": {"split_max_tensors": 2},
    "700 bytes a file": {"split_max_size": 700},
    "none in the first": {"split_max_tensors": 3, "small_first_shard": True},
}
NAMED: dict[str, Callable[[Path], Path]] = {
    "first": lambda folder: min(folder.iterdir()),
    "last": lambda folder: max(folder.iterdir()),
    "folder": lambda folder: folder,
}
RANDOM = np.random.default_rng(0)
PLAIN = {f"blk.{i}.weight": RANDOM.standard_normal((4, 32)).astype("<f4") for i in range(5)}
BLOCKS = RANDOM.integers(0, 256, (3, 68), np.uint8)


def model(folder: Path, **split: Any) -> Path:
    """Write a model with the package: five plain tensors and a quantised one, whole or split."""
    folder.mkdir()
    writer = GGUFWriter(folder / "m.gguf", "gpt2", **split)
    writer.add_file_type(0)
    writer.add_context_length(64)
    writer.add_uint16("narrow", 5)
    for name, array in PLAIN.items():
        writer.add_tensor(name, array)
    writer.add_tensor("q", BLOCKS, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return model(tmp_path / "whole") / "m.gguf"


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """Three files."""
    return model(tmp_path / "split", split_max_tensors=2)


@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_set_becomes_the_file_that_the_package_writes(
    layout: str, named: str, whole: Path, tmp_path: Path
) -> None:
    folder = model(tmp_path / "split", **LAYOUTS[layout])
    files = sorted(path.name for path in folder.iterdir())
    assert files == [f"m-{i + 1:05}-of-{len(files):05}.gguf" for i in range(len(files))]
    assert len(files) > 2
    ckptio.convert(NAMED[named](folder), tmp_path / "a.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == whole.read_bytes()
    assert not (tmp_path / "a.gguf.meta.json").exists()


def test_plain_tensors_are_pieces_of_their_file_and_metadata_those_of_a_whole(
    split: Path, whole: Path
) -> None:
    with ckptio.open(split) as checkpoint, ckptio.open(whole) as one:
        assert checkpoint.specs == one.specs
        for index, (name, array) in enumerate(PLAIN.items()):
            (span,) = checkpoint.spans(name) or ()
            assert span.file.path.name == f"m-0000{index // 2 + 1}-of-00003.gguf"
            assert span.file.read_at(span.offset, span.length) == array.tobytes()
        metadata = dict(checkpoint.metadata)
        assert metadata.pop("gguf") == {"files": 3, "types": {"narrow": "u16"}, "quantized": {"q": "Q8_0"}}
        assert metadata == {key: value for key, value in one.metadata.items() if key != "gguf"}
        assert checkpoint.omissions() == []


def test_every_command_takes_any_file_of_a_set(
    split: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = split / "m-00002-of-00003.gguf"
    for path in (split, second):
        assert main(["inspect", str(path), "--json"]) == 0
        about = json.loads(capsys.readouterr().out)
        assert about["stored"] == 6
        assert main(["verify", str(path)]) == 0
        assert main(["diff", str(path), str(whole)]) == 0
        capsys.readouterr()
    assert main(["inspect", str(split), "--json"]) == 0
    size = json.loads(capsys.readouterr().out)["file_bytes"]
    assert size == sum(path.stat().st_size for path in split.iterdir())


def test_all_files_are_watched_and_closed(split: Path, tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with ckptio.open(split / "m-00001-of-00003.gguf") as checkpoint:
        assert len(os.listdir("/proc/self/fd")) == len(before) + 3
        checkpoint.check_unchanged()
        for path in sorted(split.iterdir()):
            info = path.stat()
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 10**9))
            with pytest.raises(ChangedCheckpointError, match=path.name):
                checkpoint.check_unchanged()
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert os.listdir("/proc/self/fd") == before
    (split / "m-00003-of-00003.gguf").write_bytes(b"GGUF")
    with pytest.raises(ckptio.CorruptCheckpointError, match="m-00003-of-00003.gguf"):
        ckptio.open(split)
    assert os.listdir("/proc/self/fd") == before


def test_links_lead_to_the_files_that_are_beside_the_link(split: Path, tmp_path: Path) -> None:
    """So lie the files of huggingface_hub's cache."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "links").mkdir()
    for index, path in enumerate(sorted(split.iterdir())):
        shutil.move(path, tmp_path / "blobs" / str(index))
        (tmp_path / "links" / path.name).symlink_to(tmp_path / "blobs" / str(index))
    loaded = ckptio.load(tmp_path / "links" / "m-00002-of-00003.gguf")
    assert {name: loaded[name].tobytes() for name in PLAIN} == {n: a.tobytes() for n, a in PLAIN.items()}


def test_a_directory_with_one_model_is_that_model(split: Path, whole: Path) -> None:
    for folder, name in ((split, "m-00001-of-00003.gguf"), (whole.parent, "m.gguf")):
        (folder / "README.md").touch()
        (folder / ".hidden.gguf").touch()
        choice = choose_reader(folder, None, registry())
        assert (choice.format.name, choice.reason) == ("gguf", f"a directory that holds {name}")
    shutil.copy(whole, split)
    with pytest.raises(UnsupportedError, match="several models; name one of them") as caught:
        ckptio.open(split)
    assert str(caught.value).splitlines()[1:] == ["  m-00001-of-00003.gguf", "  m.gguf"]
    (whole.parent / "m.gguf").unlink()
    with pytest.raises(FileNotFoundError, match=r"No file \*.gguf in the directory"):
        ckptio.open(whole.parent, checkpoint_format="gguf")


def test_beside_weights_that_transformers_takes_a_directory_is_not_ours_for_sure(whole: Path) -> None:
    gguf = registry().load("gguf")
    assert gguf.match(ckptio.Probe(whole.parent)).confidence is Confidence.SURE
    ckptio.save(PLAIN, whole.parent / "model.safetensors")
    match = gguf.match(ckptio.Probe(whole.parent))
    assert (match.confidence, "model.safetensors" in match.reason) == (Confidence.NAME, True)
    assert choose_reader(whole.parent, None, registry()).format.name == "safetensors"


def test_metadata_of_other_files_are_no_silent_loss(split: Path, tmp_path: Path) -> None:
    path = split / "m-00002-of-00003.gguf"
    writer = GGUFWriter(path, "gpt2")
    writer.add_context_length(64)
    writer.add_string("general.name", "second")
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 3)
    for name in list(PLAIN)[2:4]:
        writer.add_tensor(name, PLAIN[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with ckptio.open(split) as checkpoint:
        assert [problem.where for problem in checkpoint.omissions()] == ["metadata.general.name"]
    with pytest.raises(LossyConversionError, match="says 'second', but those of m-00001"):
        ckptio.convert(split, tmp_path / "a.gguf")
    assert not (tmp_path / "a.gguf").exists()
    ckptio.convert(split, tmp_path / "a.gguf", allow=["metadata"])
    assert list(raw(tmp_path / "a.gguf")) == [*PLAIN, "q"]


def test_metadata_that_would_make_a_whole_file_a_set_stand_elsewhere(tmp_path: Path) -> None:
    said = {"split.count": 3, "split.no": 1, "split.tensors.count": 9}
    ckptio.save(PLAIN, tmp_path / "a.gguf", metadata=said)
    assert "split.count" not in GGUFReader(tmp_path / "a.gguf").fields
    with ckptio.open(tmp_path / "a.gguf") as checkpoint:
        assert {key: checkpoint.metadata[key] for key in said} == said


@pytest.mark.parametrize("named", NAMED)
def test_no_file_of_the_set_is_overwritten_by_what_is_made_of_it(split: Path, named: str) -> None:
    files = sorted(split.iterdir())
    before = [path.read_bytes() for path in files]
    for path in files:
        with pytest.raises(OptionError, match="is a file of the source|the same file"):
            ckptio.convert(NAMED[named](split), path, overwrite=True)
    os.link(files[1], split.parent / "linked.gguf")
    with pytest.raises(OptionError, match="is a file of the source"):
        ckptio.convert(files[0], split.parent / "linked.gguf", overwrite=True)
    assert [path.read_bytes() for path in files] == before
