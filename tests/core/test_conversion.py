"""`convert` and `save`: refused first, all or nothing, and everything accounted for."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckptio
from ckptio import (
    Capabilities,
    ChangedCheckpointError,
    DType,
    Format,
    LossyConversionError,
    OptionError,
    PluginError,
    UnsupportedError,
)
from ckptio.registry import registry
from golden import golden
from independent import read_ckpt

BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def listing(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def saved(path: Path, tensors: dict[str, Any], **more: Any) -> Path:
    ckptio.save(tensors, path, **more)
    return path


# Saving arrays.

STRIDED = {
    "fortran": np.asfortranarray(np.arange(12, dtype="<f4").reshape(3, 4)),
    "columns": np.arange(12, dtype="<i4").reshape(3, 4)[:, ::2],
    "transposed": np.arange(12, dtype="<i8").reshape(3, 4).T,
    "broadcast": np.broadcast_to(np.array([1, 2], "<u2"), (4, 2)),
    "reversed": np.arange(5, dtype="<f8")[::-1],
    "big": np.array([1.5, -2.0], ">f4"),
    "zero_dim": np.array(7, "<i8"),
    "scalar": np.float32(2.5),
    "empty": np.zeros((0, 4), "<f4"),
    "last": np.zeros((0,), "<f4"),
    "bool": np.array([True, False]),
    "bf16": np.array([1.5, -0.0], BF16),
}


def test_any_strides_and_byte_order_are_saved_in_c_order(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.ckpt", STRIDED)
    found = read_ckpt(path)
    assert list(found) == list(STRIDED)
    for name, given in STRIDED.items():
        wanted = np.asarray(given)
        little = wanted.astype(wanted.dtype.newbyteorder("<"))
        assert found[name].shape == wanted.shape
        assert found[name].data == little.tobytes(order="C"), name
    loaded = ckptio.load(path)
    assert all(loaded[name].dtype == np.asarray(a).dtype.newbyteorder("<") for name, a in STRIDED.items())


def test_the_same_view_of_one_memory_is_a_tie_and_equal_bytes_are_not(tmp_path: Path) -> None:
    a = np.arange(6, dtype="<f4").reshape(2, 3)
    path = saved(
        tmp_path / "x.ckpt",
        {"a": a, "tied": a, "copy": a.copy(), "row": a[0], "turned": a.T, "e": a[:0], "f": a[:0]},
    )
    with ckptio.open(path) as checkpoint:
        assert dict(checkpoint.aliases) == {"tied": "a"}


def test_a_tie_that_is_asked_for_needs_equal_values(tmp_path: Path) -> None:
    a = np.arange(3, dtype="<f4")
    path = saved(tmp_path / "x.ckpt", {"a": a, "b": a.copy()}, aliases={"b": "a", "c": "a"})
    with ckptio.open(path) as checkpoint:
        assert dict(checkpoint.aliases) == {"b": "a", "c": "a"}
    with pytest.raises(OptionError, match="'b' is given as an alias of 'a', but their values differ"):
        ckptio.save({"a": a, "b": a + 1}, tmp_path / "y.ckpt", aliases={"b": "a"})
    with pytest.raises(OptionError, match="the alias 'b' is of 'nothing'"):
        ckptio.save({"a": a}, tmp_path / "y.ckpt", aliases={"b": "nothing"})
    assert listing(tmp_path) == ["x.ckpt", "x.ckpt.meta.json"]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a": np.array(["x"])}, "a: dtype <U1 cannot be stored"),
        ({"o": np.array([object()])}, "o: dtype object cannot be stored"),
        ({1: np.zeros(2)}, "1: the name of a tensor must be a str"),
    ],
)
def test_what_no_checkpoint_holds_is_refused_by_name(tensors: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        ckptio.save(tensors, tmp_path / "x.ckpt")
    assert listing(tmp_path) == []


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"leaves": {3: 1}}, "3: the name of a leaf"),
        ({"aliases": {3: "a"}}, "3: the name of an alias"),
        ({"metadata": {3: 1}}, "3: the name of a metadata entry"),
        ({"metadata": {"a": [{"b": {None: 1}}]}}, "None: the name of a metadata entry"),
    ],
)
def test_names_that_are_no_text_are_refused_and_not_turned_into_it(
    beside: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=words):
        ckptio.save({"a": np.zeros(2, np.float32)}, tmp_path / "x.ckpt", **beside)
    assert listing(tmp_path) == []


def test_a_mask_is_not_lost(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="m: the mask"):
        ckptio.save({"m": np.ma.masked_array([1.0, 2.0], [False, True])}, tmp_path / "x.ckpt")
    assert listing(tmp_path) == []


def test_one_word_accepts_that_word_alone(tmp_path: Path) -> None:
    ckptio.save({"w": np.array([1e6], np.float32)}, tmp_path / "in.ckpt")
    with pytest.raises(LossyConversionError):
        ckptio.convert(tmp_path / "in.ckpt", tmp_path / "x.ckpt", dtype="f16", allow="no-overflow")
    ckptio.convert(tmp_path / "in.ckpt", tmp_path / "x.ckpt", dtype="f16", allow="overflow")


def test_all_that_the_target_cannot_hold_is_listed_at_once(tmp_path: Path) -> None:
    tensors = {
        "c": np.zeros(2, np.complex64),
        "fine": np.zeros(2, np.float32),
        "f8": np.zeros(2, ml_dtypes.float8_e4m3fn),
        "z": np.zeros(2, np.complex128),
    }
    with pytest.raises(UnsupportedError) as caught:
        ckptio.save(tensors, tmp_path / "x.ckpt")
    assert [problem.where for problem in caught.value.problems] == ["c", "f8", "z"]
    assert "c: dtype c64 cannot be stored" in str(caught.value)
    assert listing(tmp_path) == []


# Converting.


def test_the_report_accounts_for_everything_of_the_source(tmp_path: Path) -> None:
    a = np.arange(6, dtype="<f4")
    source = saved(
        tmp_path / "a.ckpt",
        {"w": a, "tied": a, "step": np.array(3, "<i8"), "m": a * 2},
        leaves={"lr": 0.5, "note": "x"},
        metadata={"config": {"n_layer": 1}, "author": "me"},
    )
    report = ckptio.convert(
        source, tmp_path / "b.ckpt", dtype="bf16", drop=["m", "note"], config={"n_head": "2"}
    )
    fates = {(fate.kind, fate.name): fate for fate in report.fates}
    assert len(fates) == len(report.fates)
    assert {key: fate.actions for key, fate in fates.items()} == {
        ("tensor", "w"): ("cast",),
        ("tensor", "tied"): ("cast", "tied"),
        ("tensor", "step"): ("copied",),
        ("tensor", "m"): ("dropped",),
        ("leaf", "lr"): ("recorded",),
        ("leaf", "note"): ("dropped",),
        ("metadata", "config"): ("recorded",),
        ("metadata", "author"): ("recorded",),
    }
    assert fates["metadata", "config"].detail == "n_head=2"
    assert report.tensor_bytes == 2 * 12 + 8
    assert report.sidecar == str(tmp_path / "b.ckpt.meta.json")
    assert report.to_dict()["fates"][0]["name"] == "w"
    for words in ("4 tensors", "2 cast", "1 dropped", "m: dropped (on request)", "note: dropped"):
        assert words in report.summary()
    with ckptio.open(tmp_path / "b.ckpt") as found:
        assert found.metadata["config"] == {"n_layer": 1, "n_head": 2}
        assert dict(found.leaves) == {"lr": 0.5}
        np.testing.assert_array_equal(found.read("w").astype("f4"), a)
        assert found.read("step") == 3


def test_only_the_floats_are_cast(tmp_path: Path) -> None:
    tensors = {
        "big": np.array([16777217], "<i8"),
        "mask": np.array([True, False]),
        "t": np.array(40, "<i8"),
        "w": np.array([1.0, -2.5], "<f4"),
        "d": np.array([0.5], "<f8"),
    }
    source = saved(tmp_path / "a.ckpt", tensors)
    ckptio.convert(source, tmp_path / "b.ckpt", dtype="f16")
    found = read_ckpt(tmp_path / "b.ckpt")
    assert {name: stored.kind for name, stored in found.items()} == {
        "big": "i64", "mask": "bool", "t": "i64", "w": "f16", "d": "f16"
    }  # fmt: skip
    assert found["big"].array[0] == 16777217
    assert found["w"].array.tolist() == [1.0, -2.5]


def test_overflow_names_tensor_and_count_and_is_accepted_by_its_word(tmp_path: Path) -> None:
    tensors = {"x": np.array([1e5, 1e-8, np.nan, -np.inf, -1e5], BF16), "y": np.ones(3, "<f4")}
    source = saved(tmp_path / "a.ckpt", tensors)
    with pytest.raises(LossyConversionError, match=r"x: 2 of 5 values .*\(accept with --allow overflow\)"):
        ckptio.convert(source, tmp_path / "b.ckpt", dtype="f16")
    assert listing(tmp_path) == ["a.ckpt"]
    report = ckptio.convert(source, tmp_path / "b.ckpt", dtype="f16", allow=["overflow"])
    assert len(report.losses) == 1
    assert "x: 2 of 5" in report.losses[0]
    found = read_ckpt(tmp_path / "b.ckpt")["x"]
    assert np.frombuffer(found.data, "<u2").tolist() == [0x7C00, 0x0000, 0x7E00, 0xFC00, 0xFC00]


def test_select_and_drop_work_on_tensors_and_leaves_and_promote_an_alias(tmp_path: Path) -> None:
    a = np.arange(3, dtype="<f4")
    source = saved(tmp_path / "a.ckpt", {"wte": a, "head": a, "h.0.w": a + 1}, leaves={"h.lr": 1, "x": 2})
    ckptio.convert(source, tmp_path / "b.ckpt", select=["h*"])
    with ckptio.open(tmp_path / "b.ckpt") as found:
        assert list(found.specs) == ["head", "h.0.w"]
        assert dict(found.aliases) == {}
        assert dict(found.leaves) == {"h.lr": 1}
        np.testing.assert_array_equal(found.read("head"), a)
    with pytest.raises(OptionError, match="--drop 'nothing' matches no tensor"):
        ckptio.convert(source, tmp_path / "c.ckpt", drop=["nothing"])


def test_progress_rises_to_the_whole(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.ckpt", {f"t{i}": np.zeros(30_000, "<f4") for i in range(40)})
    seen: list[tuple[int, int]] = []
    ckptio.convert(source, tmp_path / "b.ckpt", progress=lambda *step: seen.append(step))
    assert seen == sorted(seen)
    assert len(seen) >= 40
    assert seen[-1] == (40 * 120_000, 40 * 120_000)


# All or nothing.


def test_source_and_target_may_not_be_one_file(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.ckpt", {"a": np.zeros(3)})
    (tmp_path / "link.ckpt").symlink_to(source)
    os.link(source, tmp_path / "hard.ckpt")
    before = source.read_bytes()
    for name in ("a.ckpt", "link.ckpt", "hard.ckpt"):
        with pytest.raises(OptionError, match="the same file"):
            ckptio.convert(source, tmp_path / name, overwrite=True)
    assert source.read_bytes() == before


@pytest.mark.parametrize("chosen", ["gguf", "torch", "statedict", "msgpack", "npz"])
def test_a_directory_is_not_made_by_a_format_of_one_file(chosen: str, tmp_path: Path) -> None:
    source = saved(tmp_path / "a.ckpt", {"a": np.zeros(3, "<f4")})
    with pytest.raises(OptionError, match=f"{chosen}' writes one file, not a directory; name it without '/'"):
        ckptio.convert(source, f"{tmp_path}/out/", checkpoint_format=chosen)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ckpt"]


def test_an_existing_target_needs_overwrite(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.ckpt", {"a": np.arange(3)})
    target = saved(tmp_path / "b.ckpt", {"b": np.arange(4)})
    with pytest.raises(FileExistsError, match="--overwrite"):
        ckptio.convert(source, target)
    assert list(ckptio.load(target)) == ["b"]
    ckptio.convert(source, target, overwrite=True)
    assert list(ckptio.load(target)) == ["a"]


@pytest.mark.parametrize("moment", [0, 1])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, OSError(28, "No space left on device"), RuntimeError("bug")]
)
def test_whatever_stops_it_leaves_the_old_target_and_nothing_else(
    moment: int, error: Any, tmp_path: Path
) -> None:
    source = saved(tmp_path / "a.ckpt", {f"t{i}": np.full(100_000, i, "<f4") for i in range(4)})
    target = saved(tmp_path / "b.ckpt", {"old": np.arange(3), "tied": np.arange(3)}, aliases={"tied": "old"})
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    steps = 0

    def stop(done: int, total: int) -> None:
        nonlocal steps
        steps += 1
        if moment == 0 or done == total:
            raise error

    with pytest.raises(type(error) if isinstance(error, BaseException) else error):
        ckptio.convert(source, target, overwrite=True, progress=stop)
    assert steps
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before


def test_a_source_that_is_rewritten_meanwhile_publishes_nothing(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.ckpt", {f"t{i}": np.zeros(100_000, "<f4") for i in range(4)})

    def meddle(done: int, total: int) -> None:
        with open(source, "r+b") as file:
            file.seek(100)
            file.write(b"x")

    with pytest.raises(ChangedCheckpointError, match="was rewritten while"):
        ckptio.convert(source, tmp_path / "b.ckpt", progress=meddle)
    assert listing(tmp_path) == ["a.ckpt"]


def test_a_source_that_is_replaced_meanwhile_stays_what_was_opened(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.ckpt", {f"t{i}": np.full(100_000, i, "<f4") for i in range(4)})
    saved(tmp_path / "other.ckpt", {"other": np.zeros(3)})

    def replace(done: int, total: int) -> None:
        if (tmp_path / "other.ckpt").exists():
            (tmp_path / "other.ckpt").rename(source)

    ckptio.convert(source, tmp_path / "b.ckpt", progress=replace)
    assert {name: found.array[0] for name, found in read_ckpt(tmp_path / "b.ckpt").items()} == {
        "t0": 0.0, "t1": 1.0, "t2": 2.0, "t3": 3.0
    }  # fmt: skip


class Losing(Format):
    """A writer that forgets the last tensor, or writes another shape, on top of a good format."""

    name = "losing"
    summary = "Loses tensors."
    suffixes = (".losing",)
    capabilities = Capabilities(dtypes=frozenset({DType.F32}))

    def open(self, path: Path, options: Any) -> Any:
        return registry().load("statedict").open(path, {})

    def write(self, checkpoint: Any, out: Any, options: Any) -> None:
        kept = ckptio.MemoryCheckpoint({name: checkpoint.read(name) for name in list(checkpoint.specs)[:-1]})
        registry().load("statedict").write(kept, out, {})


def test_a_writer_that_loses_a_tensor_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry()._loaded, "losing", Losing())
    with pytest.raises(PluginError, match="the writer of 'losing' lost the tensor 'b'"):
        ckptio.save(
            {"a": np.zeros(3, "<f4"), "b": np.zeros(3, "<f4")}, tmp_path / "x", checkpoint_format="losing"
        )
    assert listing(tmp_path) == []


def test_an_unexpected_error_says_which_plugin_was_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, *args: Any) -> Any:
        raise ZeroDivisionError("boom")

    source = saved(tmp_path / "a.ckpt", {"a": np.zeros(3)})
    monkeypatch.setattr(type(registry().load("statedict")), "write", fail)
    with pytest.raises(ZeroDivisionError) as caught:
        ckptio.convert(source, tmp_path / "b.ckpt")
    assert "'statedict' (ckptio_statedict" in caught.value.__notes__[0]
    assert listing(tmp_path) == ["a.ckpt"]


def test_unknown_options_list_the_known_ones(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.ckpt", {"a": np.zeros(3)})
    with pytest.raises(OptionError, match=r"'llmc' has no option 'layuot' \(-o\); known: .*layout"):
        ckptio.convert(source, tmp_path / "b.bin", checkpoint_format="llmc", options={"layuot": "x"})
    with pytest.raises(OptionError, match=r"has no option 'x' \(-O\); known: "):
        ckptio.convert(source, tmp_path / "b.ckpt", source_options={"x": "1"})
    with pytest.raises(OptionError, match="unknown dtype 'f17'; known: bool, u8"):
        ckptio.convert(source, tmp_path / "b.ckpt", dtype="f17")


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    source = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/optimizer.ckpt")
    for name in ("one", "two"):
        ckptio.convert(source, tmp_path / name, checkpoint_format="statedict")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_what_became_of_several_layers_is_one_line(tmp_path: Path) -> None:
    source = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt")
    report = ckptio.convert(source, tmp_path / "a.safetensors", layout="hf")
    lines = report.summary().splitlines()
    assert "    transformer.h.*.attn.c_attn.weight: copied, transposed; 2 alike" in lines
    assert not any("transformer.h.0" in line for line in lines)
    # All of them are in the account.
    assert {fate.name for fate in report.fates} >= {f"transformer.h.{i}.attn.c_attn.weight" for i in (0, 1)}
    alone = ckptio.convert(source, tmp_path / "b.safetensors", drop=["transformer.h.1.attn.bias"])
    assert "    transformer.h.1.attn.bias: dropped (on request)" in alone.summary().splitlines()
