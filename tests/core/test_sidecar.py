"""The sidecar records what a format has no room for, and never makes a tensor wrong."""

from __future__ import annotations

import json
import math
import os
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from ckptio import OptionError, SidecarWarning
from ckptio.sidecar import sidecar_path
from golden import golden

WTE = np.arange(40_000, dtype="<f4").reshape(200, 200)


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """A statedict file of two tied names, written with its sidecar."""
    path = tmp_path / "model.ckpt"
    ckptio.save({"wte": WTE, "head": WTE, "b": np.zeros(3, "<f4")}, path)
    return path


def load_quietly(path: Path) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ckptio.load(path)


def test_a_tie_is_stored_in_full_recorded_and_comes_back_as_a_tie(tied: Path) -> None:
    with ckptio.open(tied) as checkpoint:
        assert dict(checkpoint.aliases) == {"head": "wte"}
        assert list(checkpoint.specs) == ["wte", "b"]
    loaded = load_quietly(tied)
    assert loaded["head"] is loaded["wte"]
    np.testing.assert_array_equal(loaded["head"], WTE)


def test_deleting_the_sidecar_makes_no_tensor_wrong(tied: Path) -> None:
    sidecar_path(tied).unlink()
    loaded = load_quietly(tied)
    assert loaded["head"] is not loaded["wte"]
    np.testing.assert_array_equal(loaded["head"], WTE)
    np.testing.assert_array_equal(loaded["wte"], WTE)


def test_nothing_to_record_means_no_sidecar(tmp_path: Path) -> None:
    ckptio.save({"a": WTE}, tmp_path / "plain.ckpt")
    assert [entry.name for entry in tmp_path.iterdir()] == ["plain.ckpt"]


def test_a_head_trained_on_in_place_is_no_longer_tied(tied: Path) -> None:
    # The file keeps its size and its header: only values of the head change, all over it.
    content = bytearray(tied.read_bytes())
    first = content.find(WTE.tobytes())
    head = content.find(WTE.tobytes(), first + 1)
    assert head > first > 0
    content[head : head + WTE.nbytes] = (WTE + 1).tobytes()
    tied.write_bytes(content)
    with pytest.warns(SidecarWarning, match="head is no longer tied to wte"):
        loaded = ckptio.load(tied)
    np.testing.assert_array_equal(loaded["head"], WTE + 1)
    np.testing.assert_array_equal(loaded["wte"], WTE)


def forge_ties(path: Path, ties: dict[str, str]) -> None:
    """Put other ties into a sidecar, whose size and digest fit."""
    document = json.loads(sidecar_path(path).read_text())
    document["aliases"] = ties
    sidecar_path(path).write_text(json.dumps(document))


def test_one_changed_value_of_a_large_head_unties_it(tmp_path: Path) -> None:
    wte = np.arange(500_000, dtype="<f4").reshape(500, 1000)
    path = tmp_path / "model.ckpt"
    ckptio.save({"wte": wte, "head": wte}, path)
    content = path.read_bytes()
    head = content.rfind(wte.tobytes())
    for element in (1, 123_457, 271_828, 499_998):
        changed = bytearray(content)
        changed[head + 4 * element] ^= 1
        path.write_bytes(changed)
        with pytest.warns(SidecarWarning, match="head is no longer tied to wte"):
            loaded = ckptio.load(path)
        assert np.flatnonzero(loaded["head"] != loaded["wte"]).tolist() == [element]


def test_a_tie_between_permuted_pieces_is_a_lie(tmp_path: Path) -> None:
    one = np.arange(2048, dtype="<f4")
    path = tmp_path / "model.ckpt"
    ckptio.save({"a": one, "b": np.roll(one, 1024), "c": one}, path)
    forge_ties(path, {"b": "a", "c": "a"})
    with pytest.warns(SidecarWarning, match="b is no longer tied to a"):
        loaded = ckptio.load(path)
    np.testing.assert_array_equal(loaded["b"], np.roll(one, 1024))
    assert loaded["c"] is loaded["a"]


def test_a_recorded_tie_hides_no_tensor_that_the_files_own_ties_lead_to(tmp_path: Path) -> None:
    path = tmp_path / "square.bin"
    path.write_bytes(blank_gpt2(24))
    ckptio.convert(path, tmp_path / "x.bin", checkpoint_format="llmc", config={"norm_eps": 1e-5})
    forge_ties(tmp_path / "x.bin", {"transformer.wte.weight": "transformer.wpe.weight"})
    with pytest.warns(SidecarWarning, match=r"wte.weight is no longer tied to transformer.wpe.weight"):
        loaded = ckptio.load(tmp_path / "x.bin")
    assert loaded.keys() == ckptio.load(path).keys()
    assert loaded["lm_head.weight"] is loaded["transformer.wte.weight"]


def blank_gpt2(size: int) -> bytes:
    """Return llm.c's file of a GPT-2 of zeros: one layer, one head, ``size`` tokens and positions."""
    width, padded = 4, 128
    header = struct.pack("<8i", 20240326, 3, size, size, 1, 1, width, padded).ljust(1024, b"\0")
    layer = 12 * width * width + 13 * width
    return header + bytes(4 * (padded * width + size * width + layer + 2 * width))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: "{", "not JSON"),
        (lambda text: "[]", "no sidecar of this version"),
        (
            lambda text: text.replace('"ckptio_sidecar": 1', '"ckptio_sidecar": 9'),
            "no sidecar of this version",
        ),
        (lambda text: text.replace("sha256:", "sha256:0"), "another version of the file"),
        (
            lambda text: text.replace('"head": "wte"', '"head": "wte", "wte": "head"'),
            "no sidecar of this version",
        ),
        (lambda text: "[" * 100_000, "not JSON"),
        (lambda text: text.replace('"metadata": {', '"metadata": {"x": NaN'), "not JSON"),
        (lambda text: text.replace('"head": "wte"', '"head": {}'), "no sidecar of this version"),
        (lambda text: text.replace('"head": "wte"', '"head": ["wte"]'), "no sidecar of this version"),
        (lambda text: text.replace('"leaves": {', '"leaves": {"x": [{"y": 1}]'), "not an encoded leaf"),
        (
            lambda text: text.replace('"leaves": {', f'"leaves": {{"x": {{"$complex": [1{"0" * 400}, 0]}}'),
            "not an encoded complex",
        ),
    ],
)
def test_a_sidecar_that_does_not_fit_is_ignored_with_a_warning(tied: Path, damage: Any, words: str) -> None:
    side = sidecar_path(tied)
    changed = damage(side.read_text())
    assert changed != side.read_text()
    side.write_text(changed)
    with pytest.warns(SidecarWarning, match=words):
        loaded = ckptio.load(tied)
    assert set(loaded) == {"wte", "head", "b"}
    np.testing.assert_array_equal(loaded["head"], WTE)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda side: os.symlink("/dev/zero", side)])
def test_what_is_no_regular_file_is_no_sidecar_and_is_not_waited_for(
    tied: Path, make: Callable[[Path], None]
) -> None:
    sidecar_path(tied).unlink()
    make(sidecar_path(tied))
    with pytest.warns(SidecarWarning, match="it cannot be read"):
        assert set(ckptio.load(tied)) == {"wte", "head", "b"}
    with pytest.raises(OptionError, match="was not written by ckptio"):
        ckptio.save({"a": WTE}, tied, overwrite=True)


def test_a_sidecar_of_a_file_that_was_replaced_is_ignored(tied: Path) -> None:
    other = tied.parent / "other.ckpt"
    ckptio.save({"wte": WTE, "head": WTE, "c": np.zeros(4, "<f4")}, other)
    tied.write_bytes(other.read_bytes())
    with pytest.warns(SidecarWarning, match="another version of the file"):
        assert set(ckptio.load(tied)) == {"wte", "head", "c"}


def test_leaves_and_metadata_come_back_exactly(tmp_path: Path) -> None:
    leaves = {
        "step": 7,
        "lr": 0.000123456789,
        "best": math.inf,
        "worst": -0.0,
        "z": complex(1.5, -2),
        "raw": b"\x00\xff",
        "name": "é\x00",
        "none": None,
        "flag": True,
        "empty": {},
        "list": [1, [2.5, None], "x"],
    }
    metadata = {"config": {"n_head": 4}, "note": None, "count": 3, "empty": ""}
    path = tmp_path / "x.ckpt"
    ckptio.save({"a": WTE}, path, leaves=leaves, metadata=metadata)
    with ckptio.open(path) as checkpoint:
        assert repr(dict(checkpoint.leaves)) == repr(leaves)
        assert checkpoint.metadata == metadata
    assert json.loads(sidecar_path(path).read_text())["metadata"] == metadata


def test_metadata_that_is_not_json_publishes_nothing(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not JSON"):
        ckptio.save({"a": WTE}, tmp_path / "x.ckpt", metadata={"bad": {1, 2}})
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_users_is_never_taken_for_a_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    sidecar_path(path).write_text('{"mine": 1}')
    with pytest.raises(OptionError, match="was not written by ckptio"):
        ckptio.save({"a": WTE, "b": WTE}, path, overwrite=True)
    assert sidecar_path(path).read_text() == '{"mine": 1}'
    assert not path.exists()


def test_an_overwritten_target_takes_its_old_sidecar_away(tied: Path) -> None:
    ckptio.save({"a": WTE}, tied, overwrite=True)
    assert not sidecar_path(tied).exists()
    assert set(load_quietly(tied)) == {"a"}


def test_a_failed_publication_restores_the_old_sidecar(tied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (tied.read_bytes(), sidecar_path(tied).read_bytes())

    def fail(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ckptio.writing.Output.publish", fail)
    monkeypatch.setattr("ckptio.writing.write_file", _plain_write)
    with pytest.raises(KeyboardInterrupt):
        ckptio.save({"x": WTE, "y": WTE}, tied, overwrite=True)
    assert (tied.read_bytes(), sidecar_path(tied).read_bytes()) == before
    assert sorted(entry.name for entry in tied.parent.iterdir()) == ["model.ckpt", "model.ckpt.meta.json"]


def _plain_write(path: Path, data: bytes, *, overwrite: bool) -> None:
    path.write_bytes(data)


def test_a_stale_sidecar_without_its_target_is_not_adopted(tied: Path) -> None:
    tied.unlink()
    with pytest.raises(FileExistsError, match="sidecar"):
        ckptio.save({"a": WTE, "b": WTE}, tied)
    ckptio.save({"a": WTE, "b": WTE}, tied, overwrite=True)
    with ckptio.open(tied) as checkpoint:
        assert dict(checkpoint.aliases) == {"b": "a"}


def test_what_the_file_says_by_itself_is_not_recorded_again(tmp_path: Path) -> None:
    source = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt")
    report = ckptio.convert(source, tmp_path / "x.bin", checkpoint_format="llmc", config={"n_head": 2})
    assert report.sidecar is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.bin"]
    with ckptio.open(tmp_path / "x.bin") as found:
        assert found.metadata["config"]["n_head"] == 2


def test_what_the_file_says_in_part_is_recorded(tmp_path: Path) -> None:
    source = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt")
    config = {"n_head": 2, "dropout": 0.1}
    ckptio.convert(source, tmp_path / "x.bin", checkpoint_format="llmc", config=config)
    with ckptio.open(tmp_path / "x.bin") as found:
        assert found.metadata["config"].items() >= config.items()


def test_what_is_recorded_adds_to_what_the_file_says(tmp_path: Path) -> None:
    source = golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin")
    ckptio.convert(source, tmp_path / "x.bin", checkpoint_format="llmc", config={"norm_eps": "1e-5"})
    side = sidecar_path(tmp_path / "x.bin")
    document = json.loads(side.read_text())
    document["metadata"]["config"] = {"norm_eps": 1e-5}
    side.write_text(json.dumps(document))
    with ckptio.open(tmp_path / "x.bin") as found:
        assert found.metadata["config"] == {
            "n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 97, "block_size": 16, "norm_eps": 1e-5
        }  # fmt: skip
