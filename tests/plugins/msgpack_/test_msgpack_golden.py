"""Files that flax wrote, against their truth and against flax itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.serialization
import numpy as np
import pytest

import ckptio
from ckptio_msgpack.format import MsgpackFormat
from golden import DATA, all_golden, golden_id

FORMAT = MsgpackFormat()
FILES = all_golden("flax/*.msgpack")
REAL = DATA / "real/fusion_surrogates/fast_ion_H_v1.fistab"


def entries(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what flax restored, by path; no key of these files needs an escape."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from entries(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def is_sorted(tree: Any) -> bool:
    return not isinstance(tree, dict) or (
        list(tree) == sorted(tree) and all(is_sorted(value) for value in tree.values())
    )


@pytest.mark.parametrize("path", FILES, ids=golden_id)
def test_a_file_equals_its_truth(path: Path) -> None:
    truth = json.loads(path.with_suffix(".truth.json").read_text())["leaves"]
    arrays = np.load(path.with_suffix(".truth.npz"))
    with FORMAT.open(path, {}) as checkpoint:
        assert set(checkpoint.specs) == set(arrays)
        # The truth does not list empty maps.
        plain = {name: value for name, value in checkpoint.leaves.items() if value != {}}
        assert set(checkpoint.specs) | set(plain) == set(truth)
        for name, spec in checkpoint.specs.items():
            assert (spec.dtype.long_name, list(spec.shape)) == (truth[name]["dtype"], truth[name]["shape"])
            array = checkpoint.read(name).astype(arrays[name].dtype)
            assert array.shape == arrays[name].shape
            assert array.tobytes() == arrays[name].tobytes()
        for name, value in plain.items():
            if truth[name]["kind"] == "None":
                assert value is None
            else:
                assert (type(value).__name__, repr(value)) == (truth[name]["type"], truth[name]["value"])
        scalars = [name for name, entry in truth.items() if entry["kind"] == "npscalar"]
        assert checkpoint.metadata == ({"msgpack": {"scalars": scalars}} if scalars else {})


@pytest.mark.parametrize("path", [*FILES, REAL], ids=lambda path: path.name)
def test_a_file_is_read_as_flax_reads_it(path: Path) -> None:
    restored = list(entries(flax.serialization.msgpack_restore(path.read_bytes())))
    with FORMAT.open(path, {}) as checkpoint:
        tensors = [name for name, value in restored if isinstance(value, np.ndarray | np.generic)]
        assert list(checkpoint.specs) == tensors
        assert list(checkpoint.leaves) == [name for name, _ in restored if name not in tensors]
        for name, value in restored:
            if name in tensors:
                array = checkpoint.read(name)
                assert (array.dtype, array.shape) == (value.dtype, value.shape)
                assert array.tobytes() == value.tobytes()
            else:
                assert checkpoint.leaves[name] == value
                assert type(checkpoint.leaves[name]) is type(value)


@pytest.mark.parametrize("path", [*FILES, REAL], ids=lambda path: path.name)
def test_reading_and_writing_gives_what_flax_gives(
    path: Path, written: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = path.read_bytes()
    tree = flax.serialization.msgpack_restore(original)
    limit = 1000 if "chunked1000" in path.name else 2**30
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", limit)
    with FORMAT.open(path, {}) as checkpoint:
        data = written(checkpoint, limit)
    assert data == flax.serialization.msgpack_serialize(tree)
    if is_sorted(tree):
        assert data == original


def test_the_real_file_is_told_by_its_content() -> None:
    with ckptio.open(REAL) as checkpoint:
        assert len(checkpoint.specs) == 10
        assert checkpoint.specs["params/params/MLP_0/Dense_0/kernel"].shape == (5, 32)
        assert checkpoint.leaves["species"] == "H"
