"""Files of safetensors, transformers, huggingface_hub and a real project, against truth and library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors

import ckptio
from ckptio import DType
from golden import DATA, GOLDEN, all_golden, golden, golden_id
from independent_safetensors import judge

CODES = {
    "BOOL": "bool", "U8": "u8", "I8": "i8", "U16": "u16", "I16": "i16", "U32": "u32", "I32": "i32",
    "U64": "u64", "I64": "i64", "F16": "f16", "BF16": "bf16", "F32": "f32", "F64": "f64", "C64": "c64",
    "F8_E4M3": "f8_e4m3fn", "F8_E5M2": "f8_e5m2",
}  # fmt: skip
FILES = [*all_golden("safetensors/*.safetensors"), *all_golden("hf/**/*.safetensors")]
FILES += [*GOLDEN.glob("llmc_gpt2/*/*.safetensors"), DATA / "real" / "fracast" / "model.safetensors"]
SETS = sorted({path.parent for path in FILES if path.parent.parent.name == "hf"})


def file_id(path: Path) -> str:
    return golden_id(path) if path.is_relative_to(GOLDEN) else path.parent.name


def equal_bits(array: npt.NDArray[Any], truth: npt.NDArray[Any]) -> bool:
    """Return whether ``array`` has the truth's elements, which may be stored wider."""
    wide = array if array.dtype == truth.dtype else array.astype(truth.dtype)
    return wide.shape == truth.shape and wide.tobytes() == truth.tobytes()


def config_beside(path: Path) -> dict[str, Any]:
    """Return the metadata that a file has from its folder, under the names of transformers."""
    config = path.with_name("config.json")
    usual = path.name in ("model.safetensors", "model.safetensors.index.json")
    return {"config": json.loads(config.read_text())} if usual and config.exists() else {}


@pytest.mark.parametrize("path", FILES, ids=file_id)
def test_every_file_is_as_the_library_reads_it(path: Path) -> None:
    expected = judge(path)
    with ckptio.open(path) as checkpoint:
        assert set(checkpoint.specs) == set(expected)
        for name, spec in checkpoint.specs.items():
            code, shape, data = expected[name]
            assert (spec.dtype.value, spec.shape) == (CODES[code], shape)
            assert checkpoint.read(name).tobytes() == data
            assert b"".join(checkpoint.chunks(name, 999)) == data
    with safetensors.safe_open(path, "np") as library:
        metadata = {k: v for k, v in (library.metadata() or {}).items() if k != "format"}
    assert checkpoint.metadata == {**metadata, **config_beside(path)}


def test_the_mixed_file_equals_its_truth() -> None:
    path = golden("safetensors/mixed.safetensors")
    truth = np.load(path.with_name("mixed.truth.npz"))
    leaves = json.loads(path.with_name("mixed.truth.json").read_text())["leaves"]
    with ckptio.open(path) as checkpoint:
        assert set(checkpoint.names()) == set(truth.files)
        for name in truth.files:
            assert checkpoint.specs[name].dtype is DType.parse(leaves[name]["dtype"])
            assert equal_bits(checkpoint.read(name), truth[name]), name
        assert checkpoint.metadata == {"note": "oracle", "é": "ü"}


@pytest.mark.parametrize("folder", SETS, ids=golden_id)
@pytest.mark.parametrize("by_index", [False, True], ids=["directory", "index"])
def test_every_folder_equals_its_truth(folder: Path, by_index: bool) -> None:
    truth = np.load(f"{folder}.truth.npz")
    about = json.loads(Path(f"{folder}.truth.json").read_text())
    (path,) = sorted(folder.glob("*.index.json")) or [folder / "model.safetensors"]
    with ckptio.open(path if by_index else folder) as checkpoint:
        stored = set(checkpoint.specs)
        # transformers leaves a tied head out, and says so nowhere in the file.
        assert set(truth.files) - stored <= set(about.get("tied", []))
        assert stored <= set(truth.files)
        for name in stored:
            assert checkpoint.specs[name].dtype is DType.parse(about["leaves"][name]["dtype"])
            assert equal_bits(checkpoint.read(name), truth[name]), name
        assert not checkpoint.leaves
        assert checkpoint.metadata == config_beside(path)


def test_the_tie_that_huggingface_hub_records() -> None:
    folder = golden("hf/hub_save_torch_state_dict_st/model.safetensors.index.json").parent
    with ckptio.open(folder) as checkpoint:
        assert dict(checkpoint.aliases) == {"tied_b": "tied_a"}
    loaded = ckptio.load(folder)
    assert loaded["tied_b"] is loaded["tied_a"]


def test_a_set_in_a_cache_of_links(tmp_path: Path) -> None:
    folder = golden("hf/hub_save_torch_state_dict_st/model.safetensors.index.json").parent
    snapshot = tmp_path / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        (tmp_path / "blobs" / str(number)).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    expected = ckptio.load(folder)
    for path in (snapshot, snapshot / "model.safetensors.index.json"):
        loaded = ckptio.load(path)
        assert loaded.keys() == expected.keys()
        assert all(loaded[name].tobytes() == expected[name].tobytes() for name in expected)
    # The blobs have no names of shards beside them; each is told by its content.
    with pytest.raises(ckptio.CorruptCheckpointError, match="3 of its 3 shards are missing"):
        ckptio.open(tmp_path / "blobs" / "3")
    with ckptio.open(tmp_path / "blobs" / "0") as checkpoint:
        assert list(checkpoint.specs) == ["layer.0.w", "layer.1.w"]
