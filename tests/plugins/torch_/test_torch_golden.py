"""Files that torch and real projects wrote, against their truth and against torch's own safe loader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import ckptio
from golden import DATA, GOLDEN, all_golden, golden_id
from torch_trees import assert_same, raw, tensors

FILES = [path for path in all_golden("torch/*.pt") if "unsafe" not in path.name]
REAL = [path for path in sorted(DATA.glob("real/*/*.pth")) if path.is_file()]
SHARDED = GOLDEN / "hf/hub_save_torch_state_dict_bin"


@pytest.mark.parametrize("path", FILES, ids=golden_id)
def test_a_file_equals_its_truth(path: Path) -> None:
    stem = path.stem.rpartition("_")[0]
    arrays = np.load(path.with_name(f"{stem}.truth.npz"))
    kinds = json.loads(path.with_name(f"{stem}.truth.json").read_text())["leaves"]
    with ckptio.open(path) as checkpoint:
        names = {name.replace("/", "."): name for name in checkpoint.names()}
        # What torch itself cannot read back from a stream is not in one; the rng state has no truth.
        missing = set(arrays) - set(names)
        assert missing <= {"fp8_e4m3fn", "fp8_e5m2", "u16", "u32"}
        assert not missing or path.stem.endswith("legacy")
        assert set(names) - set(arrays) <= {"rng"}
        for dotted in set(names) & set(arrays):
            array = checkpoint.read(names[dotted])
            assert (array.dtype.name, list(array.shape)) == (kinds[dotted]["dtype"], kinds[dotted]["shape"])
            assert array.astype(arrays[dotted].dtype).tobytes() == arrays[dotted].tobytes()


@pytest.mark.parametrize("path", [*FILES, *REAL], ids=lambda path: path.name)
def test_a_file_equals_what_torch_reads(path: Path) -> None:
    expected = dict(tensors(torch.load(path, weights_only=True, map_location="cpu")))
    with ckptio.open(path) as checkpoint:
        assert set(checkpoint.names()) == set(expected)
        for name, tensor in expected.items():
            array = checkpoint.read(name)
            assert (f"torch.{array.dtype.name}", array.shape) == (str(tensor.dtype), tuple(tensor.shape))
            assert array.tobytes() == raw(tensor)


@pytest.mark.parametrize("path", [*FILES, *REAL], ids=lambda path: path.name)
def test_written_again_it_is_the_same_tree(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "again.pt"
    assert ckptio.convert(path, target).sidecar is None
    expected = torch.load(path, weights_only=True, map_location="cpu")
    assert_same(torch.load(target, weights_only=True), expected)
    assert_same(torch.load(target, weights_only=True, mmap=True), expected)


def test_one_view_of_one_storage_is_a_tie_and_an_overlap_is_not() -> None:
    with ckptio.open(GOLDEN / "torch/mixed_zip.pt") as checkpoint:
        assert dict(checkpoint.aliases) == {"alias": "base"}
        assert {"base", "view_rows", "view_col", "strided"} <= set(checkpoint.specs)
        # A view costs what it shows, and is a piece of the file where its elements lie together.
        (rows,) = checkpoint.spans("view_rows") or ()
        (base,) = checkpoint.spans("base") or ()
        assert (rows.offset - base.offset, rows.length) == (6 * 4, 2 * 6 * 4)
        assert checkpoint.spans("view_col") is checkpoint.spans("transposed") is None


def test_plain_values_and_the_shape_of_the_tree_survive() -> None:
    with ckptio.open(GOLDEN / "torch/train_ckpt_zip.pt") as checkpoint:
        assert checkpoint.leaves["epoch"] == 3
        assert checkpoint.leaves["tags"] == ["a", "b"]
        assert checkpoint.leaves["optimizer/param_groups/0/betas"] == [0.9, 0.999]
        assert checkpoint.leaves["optimizer/param_groups/0/fused"] is None
        notes = checkpoint.metadata["torch"]
        assert notes["kinds"]["optimizer/param_groups/0/betas"] == "tuple"
        assert notes["int_keys"] == [f"optimizer/state/{index}" for index in range(6)]
        assert notes["attributes"]["model"]["_metadata"]["1"] == {"version": 1}


def test_storages_of_other_devices_are_read() -> None:
    # lpips' weights were saved on a GPU.
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(REAL[0], weights_only=True)
    with ckptio.open(REAL[0]) as checkpoint:
        assert len(checkpoint) == 5


@pytest.mark.parametrize("path", [SHARDED, SHARDED / "pytorch_model.bin.index.json"], ids=("folder", "index"))
def test_shards_are_one_checkpoint(path: Path) -> None:
    arrays = np.load(SHARDED.with_suffix(".truth.npz"))
    with ckptio.open(path) as checkpoint:
        assert set(checkpoint.names()) == set(arrays)
        assert dict(checkpoint.aliases) == {"tied_b": "tied_a"}
        for name, array in arrays.items():
            assert checkpoint.read(name).tobytes() == array.tobytes()
