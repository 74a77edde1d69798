"""Archives that we write, read by torch itself and by the standard library's zipfile."""

from __future__ import annotations

import io
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import ckptio
from ckptio_torch.emitter import dump
from torch_trees import assert_same, raw

STRINGS = ["", "a/b", "~", "é\udc80", "x" * 300]
DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
TREES: dict[str, Any] = {
    "a state dict": OrderedDict([("b", torch.ones(2)), ("a", torch.zeros(3))]),
    "keys of integers": {0: {"m": torch.ones(1)}, -7: {2**40: torch.ones(2)}, "0x": {"0": torch.ones(1)}},
    "counters": {"milestones": Counter({30: 1, 60: 2}), "none": Counter(), "words": Counter("aab")},
    "lists": {"groups": [{"w": torch.ones(1)}, {"lr": 0.5}], "pair": (torch.ones(1), [torch.zeros(1)])},
    "a list as the root": [torch.ones(2), {"x": 1}],
    "a tuple as the root": (torch.ones(2), torch.zeros(1)),
    "one tensor": torch.arange(3),
    "parameters": {"p": torch.nn.Parameter(torch.ones(2)), "f": torch.nn.Parameter(torch.ones(1), False)},
    "a gradient": {"g": torch.ones(2, requires_grad=True)},
    "plain values": {
        "ints": [0, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**63, -(2**64), 1 << 2000],
        "floats": [0.0, -0.0, float("inf"), float("nan"), 5e-324],
        "texts": STRINGS,
        "bytes": [b"", b"\x00\xff" * 40],
        "others": [None, True, False, 1 - 2j, [], {}, (), [[(1, (2,))]]],
        "set": {1, 2},
        "array": bytearray(b"ab\xff"),
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "devices": [torch.device("cpu"), torch.device("cuda", 1)],
        "nothing": {},
        "ordered": OrderedDict(),
    },
    **{f"a key {key[:9]!r}": {key: torch.ones(1), "d": {key: {"e": 1}}} for key in STRINGS},
}


@pytest.mark.parametrize("name", TREES)
def test_every_tree_of_torch_comes_back(name: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source.pt", tmp_path / "target.pt"
    torch.save(TREES[name], source)
    assert ckptio.convert(source, target).sidecar is None
    # torch's safe loader refuses its own b""; the source is ours.
    assert_same(torch.load(target, weights_only=True), torch.load(source, weights_only=False))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_read_by_torch(dtype: str, tmp_path: Path) -> None:
    numpy_dtype = ckptio.DType.parse(dtype).numpy
    bits = np.arange(1, 1 + 6 * numpy_dtype.itemsize, dtype=np.uint8)
    if dtype == "bool":
        bits &= 1
    tensors = {"a": bits.view(numpy_dtype).reshape(2, 3), "zero": bits.view(numpy_dtype)[:1].reshape(())}
    tensors["none"] = np.empty((0, 3), numpy_dtype)
    ckptio.save(tensors, tmp_path / "x.pt")
    for mmap in (False, True):
        found = torch.load(tmp_path / "x.pt", weights_only=True, mmap=mmap)
        for name, array in tensors.items():
            assert (str(found[name].dtype), tuple(found[name].shape)) == (f"torch.{dtype}", array.shape)
            assert raw(found[name]) == array.tobytes()
    # And torch's own file of it is read here.
    torch.save(found, tmp_path / "y.pt")
    loaded = ckptio.load(tmp_path / "y.pt")
    assert {name: array.tobytes() for name, array in loaded.items()} == {
        name: array.tobytes() for name, array in tensors.items()
    }


def test_a_dtype_that_torch_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ckptio.UnsupportedError, match="f8_e3m4"):
        ckptio.save({"a": np.zeros(2, ml_dtypes.float8_e3m4)}, tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


def test_the_layout_of_an_archive(tmp_path: Path) -> None:
    ckptio.save({"a": np.arange(5, dtype="f4"), "b": np.arange(3, dtype="u1")}, tmp_path / "my.model.pt")
    with zipfile.ZipFile(tmp_path / "my.model.pt") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            f"my.model/{name}"
            for name in (
                "data.pkl",
                ".storage_alignment",
                "byteorder",
                "data/0",
                "data/1",
                "version",
                ".data/serialization_id",
            )
        ]
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        contents = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    assert contents["byteorder"] == b"little"
    assert contents["version"].strip() == b"3"
    assert contents["data/1"] == bytes([0, 1, 2])
    reader = torch._C.PyTorchFileReader(str(tmp_path / "my.model.pt"))
    offset = reader.get_record_offset  # type: ignore[attr-defined]
    assert [offset(f"data/{index}") % 64 for index in (0, 1)] == [0, 0]


def test_ties_share_a_storage(tmp_path: Path) -> None:
    wte = np.arange(6, dtype="f4").reshape(2, 3)
    ckptio.save({"wte": wte, "head": wte, "copy": wte.copy()}, tmp_path / "x.pt")
    found = torch.load(tmp_path / "x.pt", weights_only=True)
    assert found["wte"].data_ptr() == found["head"].data_ptr() != found["copy"].data_ptr()
    with ckptio.open(tmp_path / "x.pt") as checkpoint:
        assert dict(checkpoint.aliases) == {"head": "wte"}
    with zipfile.ZipFile(tmp_path / "x.pt") as archive:
        assert sum("/data/" in name for name in archive.namelist()) == 2


def test_metadata_and_names_that_do_not_nest_stay_out_of_the_way(tmp_path: Path) -> None:
    given = {"a": np.ones(1, "f4"), "a/b": np.zeros(2, "f4"), "c~": np.ones(3, "f4")}
    metadata = {"config": {"n_head": 3}, "note": "ü"}
    report = ckptio.save(given, tmp_path / "x.pt", metadata=metadata, leaves={"step": 4})
    assert report.sidecar is None
    found = torch.load(tmp_path / "x.pt", weights_only=True)
    assert set(found) == {"a", "a/b", "c~", "step"}
    with ckptio.open(tmp_path / "x.pt") as checkpoint:
        assert set(checkpoint.names()) == set(given)
        assert checkpoint.leaves == {"step": 4}
        assert {key: checkpoint.metadata[key] for key in metadata} == metadata


def test_a_module_loads_a_state_dict_with_metadata(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 3)
    tensors = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    ckptio.save(tensors, tmp_path / "x.pt", metadata={"config": {"n": 1}})
    other = torch.nn.Linear(2, 3)
    other.load_state_dict(torch.load(tmp_path / "x.pt", weights_only=True))
    assert torch.equal(other.weight, layer.weight)


def test_equal_trees_give_equal_bytes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        ckptio.save({"a": np.arange(3.0)}, tmp_path / folder / "x.pt", leaves={"b": [1, "c"]})
    assert (tmp_path / "one/x.pt").read_bytes() == (tmp_path / "two/x.pt").read_bytes()


@pytest.mark.parametrize(
    ("leaf", "why"),
    [(1 << 2039, "an integer of 2040 bits"), (-(1 << 2039), "an integer of 2040 bits")],
)
def test_a_leaf_that_torch_could_not_read_is_refused(leaf: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ckptio.UnsupportedError, match=why):
        ckptio.save({}, tmp_path / "x.pt", leaves={"big": [leaf]})


def test_metadata_that_are_no_text_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ckptio.UnsupportedError, match=r"metadata: not text: it has a lone surrogate"):
        ckptio.save({}, tmp_path / "x.pt", metadata={"note": "\udcff"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [(1 << 2039) - 1, -(1 << 2039) + 1, -129, 1 << 31, -(1 << 31) - 1])
def test_the_longest_integers_are_read_by_torch(value: int) -> None:
    assert torch._weights_only_unpickler.load(io.BytesIO(dump(value))) == value


def test_a_name_in_a_file_and_its_stem(tmp_path: Path) -> None:
    for name in ("...pt", ".pt", "é.pt", "no suffix"):
        ckptio.save({"a": np.ones(2)}, tmp_path / name, checkpoint_format="torch")
        assert torch.equal(torch.load(tmp_path / name, weights_only=True)["a"], torch.ones(2).double())
        with ckptio.open(tmp_path / name) as checkpoint:
            assert list(checkpoint) == ["a"]
