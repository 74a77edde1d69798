"""One flag chooses; without it the content does, before the suffix."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from ckptio import AmbiguousFormatError, CkptError, UndetectedFormatError, UnknownFormatError
from ckptio.detect import choose_reader, choose_writer
from ckptio.registry import registry
from golden import all_golden, golden_id

MODELS = {
    "llmc": [*all_golden("llmc_gpt2/*_fp32.bin"), *all_golden("llmc_llama3/*layout*.bin")],
    "statedict": all_golden("infinitrain/**/*.ckpt"),
    "msgpack": all_golden("flax/*.msgpack"),
}
CASES = [(name, path) for name, paths in MODELS.items() for path in paths if "debug_state" not in path.name]


@pytest.mark.parametrize(("name", "path"), CASES, ids=[golden_id(path) for _, path in CASES])
@pytest.mark.parametrize("suffix", ["", ".bin", ".ckpt", ".msgpack", ".pth"])
def test_every_golden_file_is_told_by_its_content_under_any_suffix(
    name: str, path: Path, suffix: str, tmp_path: Path
) -> None:
    disguised = tmp_path / f"x{suffix}"
    disguised.symlink_to(path)
    assert choose_reader(disguised, None, registry()).format.name == name


def zip_file() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("x", b"1")
    return data.getvalue()


def tar_file() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    return data.getvalue()


FOREIGN = {
    "zip": (zip_file(), "a zip archive"),
    "pickle": (pickle.dumps({"a": 1}, protocol=2), "a Python pickle"),
    "pickle4": (pickle.dumps({"a": 1}, protocol=4), "a Python pickle"),
    "tar": (tar_file(), "a tar archive"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(60), "an HDF5 file"),
    "json": (json.dumps({"a": [1]}).encode(), "JSON text"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
    "html": (b"<!DOCTYPE html><html>", "a web page"),
    "empty": (b"", "an empty file"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_told_by_what_it_looks_like(kind: str, tmp_path: Path) -> None:
    content, words = FOREIGN[kind]
    path = tmp_path / "model.xyz"
    path.write_bytes(content)
    with pytest.raises(UndetectedFormatError, match=f"it looks like {words}") as caught:
        ckptio.open(path)
    assert "--checkpoint_format" in str(caught.value)
    for name in registry().names():
        assert f"\n  {name}: " in str(caught.value)


@pytest.mark.parametrize("suffix", [".bin", ".ckpt", ".msgpack"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_under_a_wrong_suffix_the_message_still_says_what_it_is(
    kind: str, suffix: str, tmp_path: Path
) -> None:
    content, words = FOREIGN[kind]
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    with pytest.raises(CkptError) as caught:
        ckptio.open(path)
    assert words in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def test_a_missing_file_stays_a_missing_file(tmp_path: Path) -> None:
    for name in (None, "llmc", "no_such_format"):
        with pytest.raises(FileNotFoundError):
            ckptio.open(tmp_path / "gone.ckpt", checkpoint_format=name)


def test_a_format_that_is_asked_for_is_not_second_guessed(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    ckptio.save({"a": np.zeros(3)}, path)
    with pytest.raises(CkptError) as caught:
        ckptio.open(path, checkpoint_format="msgpack")
    assert any("looks like statedict" in note for note in caught.value.__notes__)


def test_a_directory_lists_what_could_be_meant(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt").write_bytes(b"")
    with pytest.raises(
        UndetectedFormatError, match=r"recognises this directory; name a file in it \(model.ckpt\)"
    ):
        ckptio.open(tmp_path)


def test_two_formats_that_are_equally_sure_are_an_error_that_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    ckptio.save({"a": np.zeros(3)}, path, checkpoint_format="statedict")
    monkeypatch.setattr(type(registry().load("llmc")), "magic", (b"CKPT",))
    with pytest.raises(AmbiguousFormatError, match=r"(?s)--checkpoint_format NAME.*llmc: .*statedict: "):
        ckptio.open(path)


def test_a_fault_in_one_plugins_sniffing_does_not_hide_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, probe: Any) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(type(registry().load("msgpack")), "match", fail)
    path = tmp_path / "x"
    ckptio.save({"a": np.zeros(3)}, path, checkpoint_format="statedict")
    assert choose_reader(path, None, registry()).format.name == "statedict"
    path.write_bytes(b"nothing known")
    with pytest.raises(UndetectedFormatError, match=r"msgpack: its match\(\) failed: RuntimeError: boom"):
        ckptio.open(path)


@pytest.mark.parametrize(
    ("suffix", "name"), [(".ckpt", "statedict"), (".msgpack", "msgpack"), (".bin", "llmc")]
)
def test_an_unambiguous_suffix_chooses_the_writer(suffix: str, name: str) -> None:
    assert choose_writer(Path(f"x{suffix}"), None, registry()).format.name == name


@pytest.mark.parametrize("path", ["x", "x.unknown"])
def test_any_other_suffix_asks_for_the_flag(path: str) -> None:
    with pytest.raises(UndetectedFormatError, match="pass --checkpoint_format NAME"):
        choose_writer(Path(path), None, registry())


def test_the_historical_values_are_refused_for_writing_too(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match="'bin' is gone"):
        ckptio.save({"a": np.zeros(3)}, tmp_path / "x.bin", checkpoint_format="bin")
