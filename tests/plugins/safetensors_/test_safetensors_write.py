"""Written files: the library's own bytes, and all that a checkpoint has beside its tensors."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
import safetensors.torch
import torch

import ckptio
from ckptio import MemoryCheckpoint, UnsupportedError
from ckptio_safetensors.format import SafetensorsFormat
from golden import golden
from independent_safetensors import entry, judge

Array = npt.NDArray[Any]
Make = Callable[..., Path]
DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16",
    "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz",
    "float8_e5m2fnuz",
]  # fmt: skip
REFUSED = ["complex128", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"]
PT = {"format": "pt"}


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def filled(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return an array of random bits, NaN payloads and subnormals included."""
    count = math.prod(shape) * dtype.itemsize
    data = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, count, np.uint8)
    return data.view(dtype).reshape(shape)


def header(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    found: dict[str, Any] = json.loads(data[8 : 8 + length])
    return found


# The bytes of the library


def test_every_dtype_is_written_as_the_library_writes_it(tmp_path: Path) -> None:
    shapes: list[tuple[int, ...]] = [(), (0,), (0, 3), (5,), (2, 1, 3)]
    tensors = {
        f"{name}.{number}/é~": filled(dtype_of(name), shape, number)
        for name in DTYPES
        for number, shape in enumerate(shapes)
    }
    ckptio.save(tensors, tmp_path / "ours.safetensors")
    safetensors.numpy.save_file(tensors, tmp_path / "theirs.safetensors", metadata=PT)
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_torch_tensors_are_written_as_the_library_writes_them(tmp_path: Path) -> None:
    state = {
        "model.w": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
        "a.b": torch.tensor(1.5),
        "z": torch.ones(2, dtype=torch.float8_e4m3fn),
        "n": torch.arange(3),
    }
    safetensors.torch.save_file(state, tmp_path / "theirs.safetensors", metadata=PT)
    ckptio.convert(tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors")
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    loaded = safetensors.torch.load_file(tmp_path / "ours.safetensors")
    assert loaded.keys() == state.keys()
    assert all(loaded[name].dtype == each.dtype for name, each in state.items())


GOLDEN_FILES = [
    "safetensors/mixed.safetensors",
    "hf/hub_save_torch_state_dict_st/model-00003-of-00003.safetensors",
    "hf/llama_tied_fp16_sharded/model-00001-of-00003.safetensors",
]


@pytest.mark.parametrize(
    "relative",
    ["safetensors/mixed.safetensors", "hf/llama_tied_fp16_sharded/model-00001-of-00003.safetensors"],
)
def test_a_copy_of_a_golden_file_has_its_bytes(tmp_path: Path, relative: str) -> None:
    ckptio.convert(golden(relative), tmp_path / "copy.safetensors")
    assert (tmp_path / "copy.safetensors").read_bytes() == golden(relative).read_bytes()


@pytest.mark.parametrize("length", range(1, 9))
def test_the_data_begins_at_a_multiple_of_eight(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    ckptio.save({"n" * length: np.ones(3, "<f8")}, path)
    (size,) = struct.unpack_from("<Q", path.read_bytes())
    assert size % 8 == 0
    assert path.stat().st_size == 8 + size + 24
    assert judge(path) == {"n" * length: ("F64", (3,), np.ones(3).tobytes())}


def test_odd_names_in_their_order(tmp_path: Path) -> None:
    names = ["", "a\nb", '"\\', "\x00\x1f\x7f", "é", "\U0001f600", "\uffff", "../x", "/", "~", "n" * 300]
    tensors = {name: np.full(2, i, "<i4") for i, name in enumerate(names)}
    ckptio.save(tensors, tmp_path / "ours.safetensors")
    safetensors.numpy.save_file(tensors, tmp_path / "theirs.safetensors", metadata=PT)
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()
    assert sorted(ckptio.load(tmp_path / "ours.safetensors")) == sorted(names)


@pytest.mark.parametrize(
    "array",
    [np.asfortranarray(np.arange(12.0).reshape(3, 4)), np.arange(12)[::2], np.arange(12).reshape(3, 4).T,
     np.broadcast_to(np.array([1, 2]), (4, 2)), np.arange(3, dtype=">f4"), np.float32(1.5)],
    ids=["fortran", "strided", "transposed", "broadcast", "big-endian", "scalar"],
)  # fmt: skip
def test_arrays_in_any_layout(tmp_path: Path, array: Array) -> None:
    path = tmp_path / "x.safetensors"
    ckptio.save({"a": array}, path)
    found = safetensors.numpy.load_file(path)["a"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == np.asarray(array).dtype.newbyteorder("<")


# Ties


def test_a_tie_is_stored_once_and_recorded_as_the_library_does(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Parameter(weight)
            self.second = self.first

    safetensors.torch.save_model(Model(), str(tmp_path / "theirs.safetensors"), metadata={"format": "pt"})
    with ckptio.open(tmp_path / "theirs.safetensors") as checkpoint:
        assert dict(checkpoint.aliases) == {"second": "first"}
        assert checkpoint.metadata == {}
    array = weight.numpy()
    ckptio.save({"first": array, "second": array}, tmp_path / "ours.safetensors")
    assert header(tmp_path / "ours.safetensors") == header(tmp_path / "theirs.safetensors")
    loaded = ckptio.load(tmp_path / "ours.safetensors")
    assert loaded["second"] is loaded["first"]
    model = Model()
    safetensors.torch.load_model(model, str(tmp_path / "ours.safetensors"))
    assert torch.equal(model.second, weight)
    assert (
        os.listdir(tmp_path) == ["theirs.safetensors", "ours.safetensors"] or len(os.listdir(tmp_path)) == 2
    )


def test_ties_stored_in_full_are_recorded_beside_the_file(tmp_path: Path) -> None:
    array = np.arange(6.0)
    path = tmp_path / "x.safetensors"
    ckptio.save({"a": array, "b": array}, path, options={"ties": "full"})
    assert set(judge(path)) == {"a", "b"}
    with ckptio.open(path) as checkpoint:
        assert dict(checkpoint.aliases) == {"b": "a"}
    with pytest.raises(ckptio.OptionError, match="is not one of once, full"):
        ckptio.save({"a": array}, path, options={"ties": "both"}, overwrite=True)


def test_empty_tensors_are_no_ties_and_equal_ones_neither(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    nothing = np.zeros((0, 4), "<f4")
    ckptio.save({"a": nothing, "b": nothing, "c": np.ones(2), "d": np.ones(2)}, path)
    with ckptio.open(path) as checkpoint:
        assert not checkpoint.aliases
        assert len(checkpoint.specs) == 4


@pytest.mark.parametrize("name", ["format", "total_size", "ckptio.leaves"])
def test_a_tie_of_a_reserved_name_has_to_be_stored_in_full(tmp_path: Path, name: str) -> None:
    array = np.arange(6.0)
    path = tmp_path / "x.safetensors"
    with pytest.raises(
        UnsupportedError, match=f"{name}: a tie of this name cannot be recorded; -o ties=full"
    ):
        ckptio.save({"a": array, name: array}, path)
    ckptio.save({"a": array, name: array}, path, options={"ties": "full"})
    assert set(ckptio.load(path)) == {"a", name}


# Metadata and leaves


METADATA: dict[str, Any] = {
    "text": "é\n",
    "empty": "both metadata and a tie",
    "nothing": "",
    "number": 3,
    "float": 0.1,
    "null": None,
    "flag": True,
    "config": {"n_head": 4, "nested": [1, {"a": None}]},
    "format": "mine",
    "total_size": "12",
    "ckptio.metadata": "not ours",
    "ckptio.leaves": {"x": 1},
    "like a tie": "w",
}
LEAVES: dict[str, Any] = {
    "step": 3, "rate": 1e-323, "inf": math.inf, "nan": math.nan, "none": None, "flag": False, "text": "é",
    "raw": b"\x00\xff", "z": 1 + 2j, "map": {}, "list": [1, [2.5, "x"]], "big": 1 << 200, "a/b": -0.0,
}  # fmt: skip


def test_metadata_and_leaves_come_back_from_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tied = {"empty": "w"}
    tensors = {"w": np.ones(2), "l": np.ones(1)}
    ckptio.save(tensors, path, metadata=METADATA, leaves=LEAVES, aliases=tied)
    assert os.listdir(tmp_path) == ["x.safetensors"]
    with ckptio.open(path) as checkpoint:
        assert checkpoint.metadata == METADATA
        assert repr(sorted(checkpoint.leaves.items())) == repr(sorted(LEAVES.items()))
        assert dict(checkpoint.aliases) == tied
    # The library sees strings, and transformers what it wants.
    with safetensors.safe_open(path, "np") as library:
        found = library.metadata()
    assert found["format"] == "pt"
    assert found["empty"] == "w"
    assert found["text"] == METADATA["text"]
    assert json.loads(found["ckptio.metadata"])["config"] == METADATA["config"]


def test_plain_strings_stand_as_they_are(tmp_path: Path) -> None:
    ckptio.save({"w": np.ones(2)}, tmp_path / "x.safetensors", metadata={"note": "oracle"})
    assert header(tmp_path / "x.safetensors")["__metadata__"] == {"format": "pt", "note": "oracle"}


def test_metadata_that_is_no_string_is_read_and_kept(make: Make, tmp_path: Path) -> None:
    odd: dict[str, Any] = {
        "n": 1,
        "f": 0.5,
        "null": None,
        "list": [1, "a"],
        "map": {"k": {}},
        "format": 7,
        "text": "t",
    }
    path = make({"__metadata__": odd})
    with ckptio.open(path) as checkpoint:
        assert checkpoint.metadata == odd
        assert not checkpoint.specs
    ckptio.convert(path, tmp_path / "y.safetensors")
    with safetensors.safe_open(tmp_path / "y.safetensors", "np") as library:
        assert all(isinstance(value, str) for value in library.metadata().values())
    with ckptio.open(tmp_path / "y.safetensors") as checkpoint:
        assert checkpoint.metadata == odd


@pytest.mark.parametrize("framework", ["pt", "tf", "flax", "np", "mlx"])
def test_the_framework_is_no_metadata(make: Make, framework: str) -> None:
    with ckptio.open(make({"__metadata__": {"format": framework}})) as checkpoint:
        assert checkpoint.metadata == {}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("ckptio.leaves", 3, "ckptio.leaves is not a string"),
        ("ckptio.leaves", "[]", "ckptio.leaves is not a JSON object"),
        ("ckptio.leaves", "{", "ckptio.leaves is not valid JSON"),
        ("ckptio.leaves", '{"a": {"$float": "x"}}', "not an encoded float"),
        ("ckptio.leaves", '{"a": {"b": 1}}', "not an encoded leaf"),
        ("ckptio.leaves", '{"a": ' + "[" * 700 + "]" * 700 + "}", "nested more than"),
        ("ckptio.metadata", '{"a": 1, "a": 2}', "'a' occurs twice"),
        ("ckptio.metadata", '{"a": ' + "[" * 600 + "]" * 600 + "}", "nested more than 512 deep"),
        ("other", json.loads("[" * 600 + "]" * 600), "nested more than 512 deep"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_damaged_notes_are_errors(make: Make, key: str, value: Any, words: str) -> None:
    with pytest.raises(ckptio.CorruptCheckpointError, match=words):
        ckptio.open(make({"__metadata__": {key: value}}))


def test_an_alias_that_is_stored_too_is_metadata(make: Make) -> None:
    path = make({"__metadata__": {"a": "b"}, "a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 1, 2)}, b"12")
    with ckptio.open(path) as checkpoint:
        assert checkpoint.metadata == {"a": "b"}
        assert not checkpoint.aliases


# Refusals


def test_all_that_cannot_be_written_is_listed_at_once(tmp_path: Path) -> None:
    tensors = {name: np.zeros(2, dtype_of(name)) for name in REFUSED}
    tensors |= {"__metadata__": np.ones(1), "\ud800": np.ones(1)}
    metadata = {"nan": math.nan, "object": object(), "lone": "\udc00"}
    leaves = {"lone leaf": "\ud800"}
    with pytest.raises(UnsupportedError) as caught:
        ckptio.save(tensors, tmp_path / "x.safetensors", metadata=metadata, leaves=leaves)
    found = {problem.where: problem.what for problem in caught.value.problems}
    assert set(found) == {*REFUSED, "'__metadata__'", "'\\ud800'", *metadata, *leaves}
    assert found["complex128"] == "dtype c128 cannot be stored"
    assert "name of the metadata" in found["'__metadata__'"]
    assert "not JSON" in found["nan"]
    assert "lone surrogate" in found["lone leaf"]
    assert os.listdir(tmp_path) == []


def test_a_header_larger_than_the_format_allows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptio_safetensors.format.LARGEST_HEADER", 500)
    checkpoint = MemoryCheckpoint({"n" * 600: np.ones(1)})
    options = {"max_shard_size": None, "ties": "once"}
    (problem,) = SafetensorsFormat().check(checkpoint, options)
    assert "more bytes than the format's 500" in problem.what


def test_equal_content_gives_equal_bytes_in_any_order(tmp_path: Path) -> None:
    tensors = {name: filled(np.dtype("<f4"), (3,)) for name in "bca"}
    ckptio.save(tensors, tmp_path / "x.safetensors")
    ckptio.save(dict(reversed(tensors.items())), tmp_path / "y.safetensors")
    assert (tmp_path / "x.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()


# Through other formats


def test_llmc_comes_back_with_the_same_bytes(tmp_path: Path) -> None:
    source = golden("llmc_gpt2/gpt2_L2H2C32V97T16_bf16.bin")
    ckptio.convert(source, tmp_path / "x.safetensors")
    assert len(os.listdir(tmp_path)) == 1
    ckptio.convert(tmp_path / "x.safetensors", tmp_path / "y.bin", checkpoint_format="llmc")
    assert (tmp_path / "y.bin").read_bytes() == source.read_bytes()


def test_flax_comes_back_as_a_direct_copy(tmp_path: Path) -> None:
    source = golden("flax/trainstate_adam.msgpack")
    ckptio.convert(source, tmp_path / "x.safetensors")
    ckptio.convert(tmp_path / "x.safetensors", tmp_path / "y.msgpack")
    ckptio.convert(source, tmp_path / "direct.msgpack")
    assert (tmp_path / "y.msgpack").read_bytes() == (tmp_path / "direct.msgpack").read_bytes()
