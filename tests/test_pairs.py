"""Every ordered pair of formats on one small model with everything in it: exact, or refused in full.

The model has bf16, f32 and i64, a tie, a leaf, a 0-d and an empty tensor. Which targets refuse it, and why,
follows from their declared capabilities alone.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckptio
from ckptio import Capabilities, DType, UnsupportedError
from ckptio.registry import registry

FORMATS = ("gguf", "llmc", "msgpack", "npz", "safetensors", "statedict", "torch")
BOUND = ("gguf", "llmc")
"""Those that have no room for all of it: no empty tensors, or no names but those of an architecture."""
W = np.arange(12, dtype="<f4").reshape(3, 4)
TENSORS: dict[str, Any] = {
    "w": W,
    "tied": W,
    "half": np.array([1.5, -0.0, np.inf], ml_dtypes.bfloat16),
    "step": np.array(2**40 + 1, "<i8"),
    "empty": np.zeros((0, 3), "<f4"),
}
LEAVES = {"lr": 0.000123456789, "note": "é"}
METADATA = {"config": {"n_layer": 2}, "by": "hand"}


def reasons(capabilities: Capabilities) -> set[tuple[str, str]]:
    """Return what the target must say of each tensor, from its capabilities."""
    found = set()
    for name, array in TENSORS.items():
        if name == "tied":
            continue
        dtype = DType.of(array.dtype)
        if dtype not in capabilities.dtypes:
            found.add((name, f"dtype {dtype.value} cannot be stored"))
        if array.shape == () and not capabilities.zero_dim:
            found.add((name, "a 0-d tensor cannot be stored"))
        if array.size == 0 and not capabilities.empty:
            found.add((name, "an empty tensor of shape (0, 3) cannot be stored"))
    return found


def holds_all(name: str) -> bool:
    """Return whether a format is bound to no architecture and has room for every tensor."""
    capabilities = registry().load(name).capabilities
    return capabilities.layout is None and not reasons(capabilities)


def test_all_formats_that_ship_are_here() -> None:
    assert set(FORMATS) == {info.name for info in ckptio.formats() if info.distribution == "ckptio"}
    assert [name for name in FORMATS if holds_all(name)] == [name for name in FORMATS if name not in BOUND]


def save_in(folder: Path, name: str) -> Path:
    path = folder / f"source.{name}"
    ckptio.save(TENSORS, path, checkpoint_format=name, leaves=LEAVES, metadata=METADATA)
    return path


@pytest.mark.parametrize(("source", "target"), list(itertools.product(FORMATS, FORMATS)))
def test_pair(source: str, target: str, tmp_path: Path) -> None:
    if not holds_all(source):
        with pytest.raises(UnsupportedError):
            save_in(tmp_path, source)
        assert not list(tmp_path.iterdir())
        return
    path = save_in(tmp_path, source)
    before = {entry.name for entry in tmp_path.iterdir()}
    copy = tmp_path / f"copy.{target}"
    capabilities = registry().load(target).capabilities
    if not holds_all(target):
        with pytest.raises(UnsupportedError) as caught:
            ckptio.convert(path, copy, checkpoint_format=target)
        assert {(each.where, each.what) for each in caught.value.problems} >= reasons(capabilities)
        assert {entry.name for entry in tmp_path.iterdir()} == before
        return
    report = ckptio.convert(path, copy, checkpoint_format=target)
    assert {fate.name for fate in report.fates} == {*TENSORS, *LEAVES, *METADATA} | (
        {source} if any(fate.name == source for fate in report.fates) else set()
    )
    with ckptio.open(copy) as found:
        assert dict(found.aliases) in ({"tied": "w"}, {"w": "tied"})
        assert dict(found.leaves) == LEAVES
        assert found.metadata.items() >= METADATA.items()
        for name, array in TENSORS.items():
            read = found.read(name)
            assert (read.dtype, read.shape) == (array.dtype, array.shape)
            assert read.tobytes() == array.tobytes(), name
