"""npz files: numpy writes and we read, we write and numpy reads."""

from __future__ import annotations

import io
import json
import pickle
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import ckptio
from ckptio import CorruptCheckpointError, DType, UnsupportedError, save
from damage import damage
from golden import golden

Arrays = dict[str, npt.NDArray[Any]]

ARRAYS: Arrays = {
    "a/b.weight": np.arange(12, dtype="<f4").reshape(3, 4),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3), "<i8"),
    "turned": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "column": np.asfortranarray(np.arange(5, dtype="<u2").reshape(5, 1)),
    "big": np.arange(7, dtype=">f4"),
    "big_complex": np.asfortranarray((np.arange(6) * (1 + 2j)).astype(">c8").reshape(2, 3)),
    "mask": np.array([True, False, True]),
    "a.npy": np.arange(3, dtype="i1"),
    "été ~/..": np.array([np.nan, -0.0, 5e-324]),
}


def little(array: npt.NDArray[Any]) -> bytes:
    """Return the bytes that an array has in C order and little-endian, by numpy."""
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"))).tobytes()


def npy(array: npt.NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.lib.format.write_array(buffer, array, version=version)
    return buffer.getvalue()


def headed(header: str | bytes, data: bytes = bytes(16), version: int = 1) -> bytes:
    text = header if isinstance(header, bytes) else header.encode("latin-1")
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def archive(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return path


# Reading what numpy wrote


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_what_numpy_wrote_is_read(write: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write(path, **ARRAYS)
    with ckptio.open(path) as checkpoint, np.load(path, allow_pickle=False) as judge:
        assert list(checkpoint.specs) == list(ARRAYS)
        for name, spec in checkpoint.specs.items():
            expected = judge[name] if name != "a.npy" else ARRAYS[name]
            assert (spec.dtype, spec.shape) == (DType.of(expected.dtype), expected.shape)
            assert checkpoint.read(name).tobytes() == little(expected)
            for size in (1, 24, 1 << 20):
                chunks = list(checkpoint.chunks(name, size))
                assert b"".join(chunks) == little(expected)
                assert all(0 < len(chunk) <= max(size, spec.dtype.itemsize) for chunk in chunks)
        as_is = {name for name in ARRAYS if name not in ("turned", "big", "big_complex")}
        stored = {name for name in ARRAYS if checkpoint.spans(name) is not None}
        assert stored == (as_is if write is np.savez else set())
        assert {name for name in ARRAYS if checkpoint.crc32(name) is not None} == as_is
        for name in as_is:
            assert checkpoint.crc32(name) == zlib.crc32(little(ARRAYS[name]))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header(version: tuple[int, int], tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", {"a.npy": npy(ARRAYS["turned"], version)})
    assert ckptio.load(path)["a"].tobytes() == little(ARRAYS["turned"])


def test_headers_as_other_programs_write_them(tmp_path: Path) -> None:
    data = np.arange(6, dtype="<f4").tobytes()
    for header in [
        '{"shape":(2,3),"fortran_order":False,"descr":"<f4"}',
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }\n",
        "  { 'descr' :'<f4' , 'fortran_order' :\tFalse,'shape' : ( 2 ,3 , ) }   \n",
    ]:
        path = archive(tmp_path / "a.npz", {"a.npy": headed(header, data)})
        assert ckptio.load(path)["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("name", ["plain.npz", "compressed.npz"])
def test_the_golden_archives(name: str) -> None:
    path = golden(f"npz/{name}")
    with pytest.raises(UnsupportedError, match="skip_unknown=true") as caught:
        ckptio.open(path)
    assert [str(problem) for problem in caught.value.problems] == ["u: its dtype is '<U2': text"]
    options = {"skip_unknown": "true"}
    with ckptio.open(path, options=options) as checkpoint, np.load(path, allow_pickle=False) as judge:
        assert list(checkpoint.specs) == [each for each in judge.files if each != "u"]
        for each in checkpoint.specs:
            assert checkpoint.read(each).tobytes() == little(judge[each])
        assert [problem.where for problem in checkpoint.omissions()] == ["u"]


def test_an_array_that_is_left_out_is_a_loss_to_accept(tmp_path: Path) -> None:
    path, target = golden("npz/plain.npz"), tmp_path / "b.npz"
    options = {"skip_unknown": True}
    with pytest.raises(ckptio.LossyConversionError, match=r"u: .*--allow skipped"):
        ckptio.convert(path, target, source_options=options)
    ckptio.convert(path, target, source_options=options, allow=["skipped"])
    with np.load(path) as one, np.load(target) as other:
        assert other.files == [name for name in one.files if name != "u"]


def test_a_single_array_is_named_after_its_file() -> None:
    path = golden("npz/single_v1.npy")
    with ckptio.open(path) as checkpoint:
        assert list(checkpoint.specs) == ["single_v1"]
        expected = np.load(path)
        assert checkpoint.read("single_v1").tobytes() == expected.tobytes()
        (span,) = checkpoint.spans("single_v1") or ()
        assert (span.offset, span.length) == (128, expected.nbytes)


def test_the_archive_of_nothing(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz")
    assert ckptio.load(tmp_path / "a.npz") == {}
    save({}, tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as judge:
        assert judge.files == []


# Writing what numpy reads


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    arrays = ARRAYS | {
        "sliced": np.arange(20)[::3],
        "spread": np.broadcast_to(np.arange(2, dtype="<f4"), (4, 2)),
    }
    save(arrays, path)
    with np.load(path, allow_pickle=False) as judge:
        assert judge.files == list(arrays)
        for name, array in arrays.items():
            found = judge[f"{name}.npy"]
            assert (found.shape, found.dtype) == (array.shape, array.dtype.newbyteorder("<"))
            assert found.tobytes() == little(array)
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.value)
def test_every_dtype_keeps_its_bits(dtype: DType, tmp_path: Path) -> None:
    bits = np.arange(256, dtype="u1").repeat(dtype.itemsize) if dtype is not DType.BOOL else np.ones(8, "u1")
    array = bits.view(dtype.numpy)
    save({"a": array, "zero": array[:1].reshape(())}, tmp_path / "a.npz")
    found = ckptio.load(tmp_path / "a.npz")
    assert (found["a"].dtype, found["zero"].dtype) == (array.dtype, array.dtype)
    assert (found["a"].tobytes(), found["zero"].shape) == (bits.tobytes(), ())
    with np.load(tmp_path / "a.npz", allow_pickle=False) as judge:
        assert judge["a"].tobytes() == bits.tobytes()
        if "__ckptio__" in judge.files:
            noted = json.loads(judge["__ckptio__"].tobytes())["dtypes"]
            assert noted == {"a": dtype.value, "zero": dtype.value}
            assert judge["a"].dtype == f"u{dtype.itemsize}"
            assert (judge["a"].view(array.dtype).view("u1") == bits).all()
        else:
            assert judge["a"].dtype == array.dtype


def test_data_is_aligned_and_spans_are_kept_on_the_way(tmp_path: Path) -> None:
    save(ARRAYS, tmp_path / "a.npz")
    ckptio.convert(tmp_path / "a.npz", tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with ckptio.open(tmp_path / "b.npz") as checkpoint:
        for name in ARRAYS:
            (span,) = checkpoint.spans(name) or ()
            assert span.offset % 64 == 0


def test_ties_leaves_and_metadata_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save({"a": np.ones(3)}, path, aliases={"b": "a"}, leaves={"step": 3}, metadata={"note": "x"})
    with ckptio.open(path) as checkpoint:
        assert (checkpoint.aliases, checkpoint.leaves) == ({"b": "a"}, {"step": 3})
        assert checkpoint.metadata["note"] == "x"
    with np.load(path) as judge:
        assert judge["a"].tolist() == judge["b"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "é" * 32_767, "__ckptio__"])
def test_names_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        save({name: np.ones(3), "other": np.ones(3)}, tmp_path / "a.npz")
    assert [problem.where for problem in caught.value.problems] == [ascii(name)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "/abs", "../x", "a\\b", "x" * 300, "a/", "weight:0", "__ckptio"])
def test_names_that_only_look_odd(name: str, tmp_path: Path) -> None:
    save({name: np.arange(3)}, tmp_path / "a.npz")
    assert list(ckptio.load(tmp_path / "a.npz")) == [name]
    with np.load(tmp_path / "a.npz") as judge:
        assert judge[name].tolist() == [0, 1, 2]


# What numpy has no name for


def test_raw_bytes_are_refused_until_someone_says_what_they_are(tmp_path: Path) -> None:
    array = np.arange(6).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "a.npz", a=array, b=np.ones(2))
    with pytest.raises(UnsupportedError, match=r"-O void=bf16") as caught:
        ckptio.open(tmp_path / "a.npz")
    assert [problem.where for problem in caught.value.problems] == ["a"]
    found = ckptio.load(tmp_path / "a.npz", options={"void": "bf16"})
    assert (found["a"].dtype, found["a"].tobytes()) == (array.dtype, array.tobytes())
    with pytest.raises(UnsupportedError, match="void"):
        ckptio.open(tmp_path / "a.npz", options={"void": "f8_e4m3"})
    with pytest.raises(ckptio.OptionError, match="unknown dtype"):
        ckptio.open(tmp_path / "a.npz", options={"void": "bf17"})
    np.save(tmp_path / "b.npy", array)
    with pytest.raises(UnsupportedError, match=r"-O void=bf16"):
        ckptio.open(tmp_path / "b.npy")


def test_the_one_f8_kind_that_numpy_names(tmp_path: Path) -> None:
    array = np.arange(6).astype(ml_dtypes.float8_e5m2)
    np.savez(tmp_path / "a.npz", a=array)
    found = ckptio.load(tmp_path / "a.npz")["a"]
    assert (found.dtype, found.tobytes()) == (array.dtype, array.tobytes())


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.array(["text"]), "text"),
        (np.array([b"text"]), "text"),
        (np.array(["2026-01-01"], "M8[D]"), "dates"),
        (np.array([1], "m8[s]"), "time spans"),
        (np.zeros(2, [("x", "<f4"), ("y", "<i4")]), "records of several fields"),
        (np.zeros(2, np.longdouble), "no dtype of checkpoints"),
    ],
)
def test_dtypes_that_are_no_tensors(array: npt.NDArray[Any], reason: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", odd=array, other=np.ones(1))
    with pytest.raises(UnsupportedError, match=reason) as caught:
        ckptio.open(tmp_path / "a.npz")
    assert [problem.where for problem in caught.value.problems] == ["odd"]
    assert list(ckptio.load(tmp_path / "a.npz", options={"skip_unknown": "true"})) == ["other"]


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_object_arrays_are_never_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    np.savez(tmp_path / "a.npz", bad=np.array([Bomb(mark)], object), good=np.ones(1))
    with pytest.raises(UnsupportedError, match="bad: .*pickle: it is never loaded"):
        ckptio.open(tmp_path / "a.npz")
    with ckptio.open(tmp_path / "a.npz", options={"skip_unknown": "true"}) as checkpoint:
        assert list(checkpoint.specs) == ["good"]
        checkpoint.read("good")
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists(), "the bomb is none"


# The note of dtypes


NOTED = np.arange(4, dtype="<u2")


@pytest.mark.parametrize(
    ("note", "match"),
    [
        (b"no json", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "it is not"),
        (b'{"dtypes": []}', "it is not"),
        (b'{"dtypes": {"a": 1}}', "it is not"),
        (b'{"dtypes": {}, "more": 1}', "it is not"),
        (b'{"dtypes": {"a": "bf17"}}', "unknown dtype"),
        (b'{"dtypes": {"a": "f32"}}', "noted as f32, but stored as '<u2'"),
        (b'{"dtypes": {"a": "f8_e4m3"}}', "noted as f8_e4m3, but stored"),
        (b'{"dtypes": {"b": "bf16"}}', "not there: b"),
    ],
)
def test_notes_that_lie(note: bytes, match: str, tmp_path: Path) -> None:
    entries = {"a.npy": npy(NOTED), "__ckptio__.npy": npy(np.frombuffer(note, "u1"))}
    with pytest.raises(CorruptCheckpointError, match=match):
        ckptio.open(archive(tmp_path / "a.npz", entries))


def test_a_note_that_is_none(tmp_path: Path) -> None:
    for array in (np.ones(3), np.zeros((2, 2), "u1")):
        path = archive(tmp_path / "a.npz", {"__ckptio__.npy": npy(array)})
        with pytest.raises(CorruptCheckpointError, match="'__ckptio__' should note .*u8 array"):
            ckptio.open(path)


# Files that lie


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "not an .npy array"),
        (b"\x80\x02pickle", "not an .npy array"),
        (b"\x93NUMPY", "version"),
        (b"\x93NUMPY\x04\x00\x10\x00\x00\x00", "version 04"),
        (b"\x93NUMPY\x01\x00\x10", "ends inside its header"),
        (b"\x93NUMPY\x01\x00\xf0\x00{}", "ends inside its header"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}", "claims 4294967295 bytes"),
        (headed("{}"), "header is damaged"),
        (headed("{" * 9_000), "header is damaged"),
        (headed("(" * 9_000), "header is damaged"),
        (headed("{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'more': 1}"), "damaged"),
        (headed("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (4,)}"), "wrong descr"),
        (headed("{'descr': '<f4', 'fortran_order': 'no', 'shape': (4,)}"), "wrong fortran_order"),
        (headed("{'descr': '<f4', 'fortran_order': False, 'shape': (4,)} + x"), "damaged"),
        (headed("{'descr': '<f4', 'fortran_order': False, 'shape': (4)}"), "number, not a tuple"),
        (headed("{'descr': '<f4', 'fortran_order': False, 'shape': (2,,2)}"), "shape"),
        (headed("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}"), "damaged"),
        (headed("{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}"), "16 bytes of data, but f32"),
        (headed("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}"), "16 bytes of data, but f32"),
        (headed("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999)}"), "larger"),
        (headed(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'9' * 400},)}}"), "damaged"),
        (headed(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1, ' * 65})}}", bytes(4)), "65 dim"),
        (headed(b"{'descr': '\xff'}", version=3), "utf-8"),
    ],
)
def test_arrays_that_lie(data: bytes, match: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", {"a.npy": data})
    with pytest.raises(CorruptCheckpointError, match=match) as caught:
        ckptio.open(path, checkpoint_format="npz")
    assert caught.value.offset == 35, "where the entry's data begins"
    if data.startswith(b"\x93NUMPY"):
        single = tmp_path / "a.npy"
        single.write_bytes(data)
        with pytest.raises(CorruptCheckpointError, match=match):
            ckptio.open(single)


def test_two_arrays_of_one_name(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", {"a.npy": npy(NOTED), "a": npy(NOTED)})
    with pytest.raises(CorruptCheckpointError, match="two arrays are named 'a'"):
        ckptio.open(path)


def test_a_torch_file_is_told_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(golden("torch/tied_zip.pt").read_bytes())
    with pytest.raises(CorruptCheckpointError, match="'tied_zip/data.pkl' cannot be read: it is not an .npy"):
        ckptio.open(path, checkpoint_format="npz")


def test_archives_are_told_by_their_content_whatever_the_suffix(tmp_path: Path) -> None:
    arrays: Any = {"n" * 300: np.ones(3)}
    for write in (np.savez, np.savez_compressed):
        with open(tmp_path / "a.bin", "wb") as file:
            write(file, **arrays)
        with ckptio.open(tmp_path / "a.bin") as checkpoint:
            assert list(checkpoint.specs) == ["n" * 300]


def test_a_bomb_takes_no_more_memory_than_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.zeros(4 << 20, "<f8"))
    assert path.stat().st_size < 50_000
    tracemalloc.start()
    try:
        with ckptio.open(path) as checkpoint:
            count = sum(len(chunk) for chunk in checkpoint.chunks("a", 100_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 32 << 20
    assert peak < 1 << 20


def test_damaged_data_is_noticed_where_it_is_gone_through(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.arange(100.0))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(np.float64(50).tobytes())] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with ckptio.open(tmp_path / "a.npz") as checkpoint, pytest.raises(CorruptCheckpointError, match="CRC-32"):
        checkpoint.digest("a")


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_no_damage_is_worse_than_an_error_message(write: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write(path, **{name: ARRAYS[name] for name in ("a/b.weight", "turned", "big", "scalar", "empty")})
    counts = damage(path, "npz", tmp_path)
    assert counts["refused"] > 1000
    if write is np.savez:
        assert counts["one element differs"] >= 2
