"""Dtypes: D1 to D5, in every format that holds tensors of any names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from ckptio import DType
from ckptio.registry import registry
from held import held
from independent import read_ckpt


def one_of_each() -> dict[str, Any]:
    """Return a tensor of every dtype, of bytes that any of them can have (also a bool)."""
    return {dtype.value: np.tile(np.array([0, 1], "u1"), dtype.itemsize).view(dtype.numpy) for dtype in DType}


def test_d1_every_dtype_is_held_or_all_offenders_are_listed(tmp_path: Path, target: str) -> None:
    tensors = one_of_each()
    held = {dtype.value for dtype in registry().load(target).capabilities.dtypes}
    if held != tensors.keys():
        with pytest.raises(ckptio.UnsupportedError) as caught:
            ckptio.save(tensors, tmp_path / "x", checkpoint_format=target)
        assert {problem.where for problem in caught.value.problems} == tensors.keys() - held
        assert list(tmp_path.iterdir()) == []
    kept = {name: array for name, array in tensors.items() if name in held}
    ckptio.save(kept, tmp_path / "x", checkpoint_format=target)
    loaded = ckptio.load(tmp_path / "x", checkpoint_format=target)
    assert {name: (array.dtype, array.tobytes()) for name, array in loaded.items()} == {
        name: (array.dtype, array.tobytes()) for name, array in kept.items()
    }


BF16 = np.array([0x47C3, 0x322C, 0x7FC0, 0xFF80], "<u2").view(DType.BF16.numpy)  # 99840, 1e-8, nan, -inf


def test_d2_overflow_is_an_error_with_name_and_count_unless_allowed(tmp_path: Path, target: str) -> None:
    ckptio.save({"w": BF16, "fits": np.ones(3, "<f4")}, tmp_path / "in.ckpt")
    how: dict[str, Any] = {"checkpoint_format": target, "dtype": "f16"}
    with pytest.raises(ckptio.LossyConversionError) as caught:
        ckptio.convert(tmp_path / "in.ckpt", tmp_path / "x", **how)
    (problem,) = caught.value.problems
    assert (problem.where, problem.allow) == ("w", "overflow")
    assert problem.what.startswith("1 of 4 ")
    assert [each.name for each in tmp_path.iterdir()] == ["in.ckpt"]
    report = ckptio.convert(tmp_path / "in.ckpt", tmp_path / "x", **how, allow=["overflow"])
    assert [loss.partition(":")[0] for loss in report.losses] == ["w"]
    found = ckptio.load(tmp_path / "x", checkpoint_format=target)["w"]
    assert [float(value) for value in found[[0, 1, 3]]] == [math.inf, 0.0, -math.inf]
    assert math.isnan(found[2])


def test_d3_only_floats_are_cast(tmp_path: Path, target: str) -> None:
    every = {
        "ids": np.array([16777217], "<i8"),
        "mask": np.array([True, False]),
        "step": np.array(2049, "<i4"),  # neither has a neighbour in f16
    }
    others = held(target, every, tmp_path)
    ckptio.save({**others, "w": np.array([1.0 + 2.0**-12], "<f4")}, tmp_path / "in.ckpt")
    ckptio.convert(tmp_path / "in.ckpt", tmp_path / "x", checkpoint_format=target, dtype="f16")
    found = ckptio.load(tmp_path / "x", checkpoint_format=target)
    for name, array in others.items():
        assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes()), name
    assert (found["w"].dtype, found["w"].tolist()) == (np.dtype("<f2"), [1.0])


def test_d4_big_endian_arrays_are_little_endian_on_disk(tmp_path: Path, target: str) -> None:
    kinds = [dtype for dtype in registry().load(target).capabilities.dtypes if dtype.numpy.kind in "iufc"]
    tensors = {
        dtype.value: np.arange(1, 4).astype(dtype.numpy.newbyteorder(">"))
        for dtype in kinds
        if dtype.itemsize > 1 and dtype is not DType.BF16
    }
    assert len(tensors) > 5
    ckptio.save(tensors, tmp_path / "x", checkpoint_format=target)
    content = (tmp_path / "x").read_bytes()
    for name, array in tensors.items():
        assert array.astype(array.dtype.newbyteorder("<")).tobytes() in content, name


BITS = {
    "<f2": [0x7C01, 0xFE55, 0x8000, 0x0001, 0xFC00],
    "<f4": [0x7F800001, 0xFFC12345, 0x80000000, 0x00000001, 0xFF800000],
    "<f8": [0x7FF0000000000001, 0xFFF8123456789ABC, 1 << 63, 1, 0xFFF0000000000000],
}


def test_d5_payloads_of_nan_minus_zero_and_subnormals_keep_their_bits(tmp_path: Path, target: str) -> None:
    tensors = {kind: np.array(bits, kind.replace("f", "u")).view(kind) for kind, bits in BITS.items()}
    tensors["bf16"] = np.array([0x7F81, 0xFFC1, 0x8000, 0x0001], "<u2").view(DType.BF16.numpy)
    ckptio.save(tensors, tmp_path / "in.ckpt")
    ckptio.convert(tmp_path / "in.ckpt", tmp_path / "x", checkpoint_format=target)
    ckptio.convert(tmp_path / "x", tmp_path / "out.ckpt", source_format=target)
    found = {name: stored.data for name, stored in read_ckpt(tmp_path / "out.ckpt").items()}
    assert found == {name: array.tobytes() for name, array in tensors.items()}
