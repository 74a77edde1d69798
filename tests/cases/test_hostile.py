"""Hostile or odd files: H1, H4, H8 and H9 in every format; H2, H3 and H11 stand beside what they test.

H2 is ``tests/damage.py``, ``tests/plugins/test_damage.py`` and the damage tests of each plugin, H3
``tests/core/test_detect.py``, H11 ``tests/core/test_checkpoint.py`` and ``tests/core/test_casts.py``.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import ckptio
from ckptio.registry import registry
from independent import ckpt_file, record

ONE, TWO = np.array([1, 2], "<f4"), np.array([3, 4], "<f4")


def twice_in_statedict(path: Path) -> None:
    path.write_bytes(ckpt_file(*(record(b"a", 11, (2,), data=each.tobytes()) for each in (ONE, TWO))))


def twice_in_msgpack(path: Path) -> None:
    def entry(each: Any) -> bytes:
        payload: bytes = msgpack.packb(([2], "float32", each.tobytes()))
        return b"\xa1a" + msgpack.packb(msgpack.ExtType(1, payload))  # type: ignore[no-any-return]

    path.write_bytes(b"\x82" + entry(ONE) + entry(TWO))


def twice_in_npz(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile notices too
        for each in (ONE, TWO):
            with archive.open("a.npy", "w") as entry:
                np.lib.format.write_array(entry, each)


def twice_in_safetensors(path: Path) -> None:
    entry = '"a":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}'
    header = ("{" + entry % (0, 8) + "," + entry % (8, 16) + "}").encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + ONE.tobytes() + TWO.tobytes())


@pytest.mark.parametrize("make", [twice_in_statedict, twice_in_msgpack, twice_in_npz, twice_in_safetensors])
def test_h1_two_tensors_of_one_name_are_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(ckptio.CheckpointError, match="'?a") as caught:
        ckptio.open(path)
    assert str(path) in str(caught.value)


ODD = ["../../x", "/abs", "a/../b", "..", ".", "", "a\0b", "n" * 300, "\x1b[31m", "a\nb", "~", "C:\\x", "é"]


def test_h4_names_never_lead_out_of_the_target(tmp_path: Path, target: str) -> None:
    inner = tmp_path / "one" / "two"
    inner.mkdir(parents=True)
    held = []
    for name in ODD:
        try:
            ckptio.save({name: ONE}, inner / "x", checkpoint_format=target, overwrite=True)
        except ckptio.UnsupportedError:
            continue
        held.append(name)
    assert {"../../x", "/abs", "a/../b", "n" * 300, "é"} <= set(held)
    tensors = {name: np.array([index], "<i4") for index, name in enumerate(held)}
    ckptio.save(tensors, inner / "x", checkpoint_format=target, overwrite=True)
    loaded = ckptio.load(inner / "x", checkpoint_format=target)
    assert {name: array.tolist() for name, array in loaded.items()} == {
        name: array.tolist() for name, array in tensors.items()
    }
    assert {each.name for each in tmp_path.rglob("*")} <= {"one", "two", "x", "x.meta.json"}


LEAVES: dict[str, Any] = {
    "opt/step": 7,
    "opt/rate": 1e-3,
    "opt/none": None,
    "list": [1, [2.5, None], "x"],
    "big": 2**63,
    "raw": b"\x00\xff",
    "z": complex(1.5, -2),
    "flag": True,
    "empty": {},
}


def test_h8_plain_leaves_survive(tmp_path: Path, target: str) -> None:
    ckptio.save({"w": ONE}, tmp_path / "in.msgpack", leaves=LEAVES)
    ckptio.convert(tmp_path / "in.msgpack", tmp_path / "x", checkpoint_format=target)
    ckptio.convert(tmp_path / "x", tmp_path / "out.msgpack", source_format=target)
    with ckptio.open(tmp_path / "out.msgpack") as checkpoint:
        assert repr(sorted(checkpoint.leaves.items())) == repr(sorted(LEAVES.items()))


METADATA = {"number": 3, "float": 0.1, "empty": "", "null": None, "map": {"a": [1, None]}, "text": "x"}


@pytest.mark.parametrize("tensors", [{}, {"w": ONE}], ids=["no tensors", "a tensor"])
def test_h9_metadata_of_any_kind_is_kept(tmp_path: Path, target: str, tensors: dict[str, Any]) -> None:
    ckptio.save(tensors, tmp_path / "x", checkpoint_format=target, metadata=METADATA)
    ckptio.convert(tmp_path / "x", tmp_path / "y.ckpt", source_format=target)
    for path, name in ((tmp_path / "x", target), (tmp_path / "y.ckpt", "statedict")):
        with ckptio.open(path, checkpoint_format=name) as checkpoint:
            assert list(checkpoint.specs) == list(tensors)
            own = {key: value for key, value in checkpoint.metadata.items() if key not in registry().names()}
            assert json.dumps(own, sort_keys=True) == json.dumps(METADATA, sort_keys=True)
