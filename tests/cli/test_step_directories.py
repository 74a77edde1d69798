"""Step directories where a command takes a checkpoint: convert, inspect, diff and verify."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

import ckptio
import ckptio.training.step_conversion
from ckptio.training import CheckpointOptions, TrainerState, resume_checkpoint, save_checkpoint
from golden import golden
from independent import read_ckpt
from independent_llmc import read_llmc

Arrays = dict[str, npt.NDArray[Any]]
NATIVE = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt").parent
# llm.c's files have fixed names, GGUF has no room for a mask of bool.
SHIPPED = [info.name for info in ckptio.formats() if info.name not in ("llmc", "gguf")]
STATE = TrainerState(
    global_step=7,
    consumed_samples=112,
    last_lr=0.1 + 0.2,
    last_loss=1e-300,
    best_loss=float("inf"),
    config={"n_head": 2},
    unknown={"of_another_program": [1, {"a": None}]},
)


def content() -> tuple[Arrays, dict[str, Any], dict[str, Any]]:
    """Return model, optimizer and extra states with all that a cast could spoil."""
    random = np.random.default_rng(3)
    model = {"w": random.normal(size=(4, 3)).astype(np.float32), "mask": np.array([True, False])}
    optimizer = {
        "exp_avg": {"w": random.normal(size=(4, 3)).astype(np.float32)},
        "step": np.array(16777217, np.int64),
        "lr": 0.1,
    }
    return model, optimizer, {"ema": {"w": random.normal(size=3), "decay": 0.999}}


def blank() -> tuple[Arrays, dict[str, Any], dict[str, Any]]:
    model, optimizer, extra = content()
    empty = {"exp_avg": {"w": np.zeros_like(optimizer["exp_avg"]["w"])}, "step": np.array(0), "lr": 0.0}
    return (
        {name: np.zeros_like(each) for name, each in model.items()},
        empty,
        {"ema": {"w": np.zeros_like(extra["ema"]["w"]), "decay": 0.0}},
    )


@pytest.fixture
def step(tmp_path: Path) -> Callable[..., Path]:
    """Save step 7 of a run in some format, with changes."""

    def save(
        checkpoint_format: str = "statedict", run: str = "run", change: Callable[..., Any] | None = None
    ) -> Path:
        model, optimizer, extra = content()
        if change is not None:
            change(model, optimizer)
        options = CheckpointOptions(tmp_path / run, save_steps=1, checkpoint_format=checkpoint_format)
        return save_checkpoint(options, STATE, model, optimizer, extra=extra, notes=lambda text: None)

    return save


def same(one: Any, other: Any) -> bool:
    """Whether nested states are the same, to the last bit and the dtype."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return type(one) is type(other) and bool(one == other)


def left_in(directory: Path, *known: str) -> list[str]:
    return sorted(set(os.listdir(directory)) - set(known))


# convert


@pytest.mark.parametrize("target_format", SHIPPED)
@pytest.mark.parametrize("source_format", ["statedict", "msgpack"])
def test_a_converted_step_resumes_to_the_very_same(
    ckpt: Callable[..., Any],
    step: Callable[..., Path],
    tmp_path: Path,
    source_format: str,
    target_format: str,
) -> None:
    source, target = step(source_format), tmp_path / "checkpoint_step_000007"
    ended = ckpt("convert", source, target, "--checkpoint_format", target_format)
    assert (ended.status, ended.err) == (0, "")
    assert left_in(tmp_path, "run") == ["checkpoint_step_000007"]
    model, optimizer, extra = blank()
    options = CheckpointOptions(resume_from=str(target))
    state = resume_checkpoint(options, model, optimizer, extra=extra, verify=True, notes=lambda text: None)
    for found, wanted in zip((model, optimizer, extra), content(), strict=True):
        assert same(found, wanted)
    assert state.checkpoint_format == target_format
    before = json.loads((source / "trainer_state.json").read_text())
    after = json.loads((target / "trainer_state.json").read_text())
    assert after == before | {"checkpoint_format": target_format}


def test_the_tensors_are_those_by_other_readers(
    ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path
) -> None:
    model, optimizer, extra = content()
    parts: dict[str, Arrays] = {
        "model": model,
        "optimizer": {"exp_avg.w": optimizer["exp_avg"]["w"], "step": optimizer["step"]},
        "ema": {"w": extra["ema"]["w"]},
    }
    source = step("msgpack")
    for name in ("statedict", "npz", "safetensors"):
        assert ckpt("convert", source, tmp_path / name, "--checkpoint_format", name).status == 0
    for part, arrays in parts.items():
        native = read_ckpt(tmp_path / "statedict" / f"{part}.ckpt")
        assert same({key: each.array for key, each in native.items()}, arrays)
        with np.load(tmp_path / "npz" / f"{part}.npz") as archive:
            assert same({key: archive[key] for key in archive.files}, arrays)
        assert same(load_file(tmp_path / "safetensors" / f"{part}.safetensors"), arrays)


def test_the_manifest_is_that_of_the_new_files(
    ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path
) -> None:
    target = tmp_path / "new"
    ckpt("convert", step("msgpack"), target, "--checkpoint_format", "statedict")
    manifest = json.loads((target / "manifest.json").read_text())
    files = {path.name: path.read_bytes() for path in target.iterdir() if path.name != "manifest.json"}
    assert manifest["step"] == 7
    assert {name: each["path"] for name, each in manifest["parts"].items()} == {
        "model": "model.ckpt",
        "optimizer": "optimizer.ckpt",
        "ema": "ema.ckpt",
    }
    assert {each["format"] for each in manifest["parts"].values()} == {"statedict"}
    assert manifest["files"] == {
        name: {"size": len(data), "crc32": f"{zlib.crc32(data):08x}"} for name, data in files.items()
    }


def test_a_cast_leaves_all_but_the_model_alone(
    ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path
) -> None:
    model, optimizer, extra = content()
    argv = ("convert", step(), tmp_path / "new", "--checkpoint_format", "statedict", "--dtype", "bf16")
    assert ckpt(*argv).status == 0
    found = read_ckpt(tmp_path / "new" / "model.ckpt")
    assert same(found["w"].array, model["w"].astype(ml_dtypes.bfloat16).view(np.uint16))
    assert (found["w"].kind, found["mask"].kind) == ("bf16", "bool")
    found = read_ckpt(tmp_path / "new" / "optimizer.ckpt")
    assert same(found["exp_avg.w"].array, optimizer["exp_avg"]["w"])
    assert same(found["step"].array, optimizer["step"])
    assert same(read_ckpt(tmp_path / "new" / "ema.ckpt")["w"].array, extra["ema"]["w"])


def test_the_optimizer_is_cast_when_asked(
    ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path
) -> None:
    model, optimizer, extra = content()
    argv = ("--checkpoint_format", "statedict", "--optimizer-dtype", "f16")
    assert ckpt("convert", step(), tmp_path / "new", *argv).status == 0
    found = read_ckpt(tmp_path / "new" / "optimizer.ckpt")
    assert same(found["exp_avg.w"].array, optimizer["exp_avg"]["w"].astype(np.float16))
    assert same(found["step"].array, optimizer["step"])
    assert same(read_ckpt(tmp_path / "new" / "model.ckpt")["w"].array, model["w"])
    assert same(read_ckpt(tmp_path / "new" / "ema.ckpt")["w"].array, extra["ema"]["w"])


def test_a_format_for_models_has_the_optimizer_beside_it_in_statedict(
    ckpt: Callable[..., Any], tmp_path: Path
) -> None:
    target = tmp_path / "new"
    argv = ("convert", NATIVE, target, "--checkpoint_format", "llmc", "--config", "n_head=2")
    assert ckpt(*argv).status == 0
    parts = json.loads((target / "manifest.json").read_text())["parts"]
    assert parts["model"] == {"path": "model.bin", "format": "llmc"}
    assert parts["optimizer"] == {"path": "optimizer.ckpt", "format": "statedict"}
    assert read_ckpt(target / "optimizer.ckpt") == read_ckpt(NATIVE / "optimizer.ckpt")
    native = read_ckpt(NATIVE / "model.ckpt")
    found = read_llmc(target / "model.bin")[2]
    assert len(found) == 28
    for name, (shape, data) in found.items():
        assert (native[name].shape, native[name].data) == (shape, data)
    document = json.loads((target / "trainer_state.json").read_text())
    assert (document["global_step"], document["consumed_batches"], document["n_layer"]) == (2, 4, 12)


def test_the_config_of_the_trainer_state_is_known(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(NATIVE, source)
    document = json.loads((source / "trainer_state.json").read_text().replace("50304\n", "50304,\n"))
    (source / "trainer_state.json").write_text(json.dumps(document | {"config": {"n_head": 2}}))
    assert ckpt("convert", source, tmp_path / "new", "--checkpoint_format", "llmc").status == 0
    header = np.fromfile(tmp_path / "new" / "model.bin", "<i4", 8)
    # Magic, version, block size, vocabulary, layers, heads, channels, padded vocabulary.
    assert header.tolist() == [20240326, 3, 16, 97, 2, 2, 32, 128]


def test_shards(ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "new"
    argv = ("--checkpoint_format", "safetensors", "--max_shard_size", "48")
    assert ckpt("convert", step(), target, *argv).status == 0
    manifest = json.loads((target / "manifest.json").read_text())
    assert manifest["parts"]["model"]["path"] == "model"
    assert any(name.startswith("model/") for name in manifest["files"])
    model, optimizer, extra = blank()
    options = CheckpointOptions(resume_from=str(target))
    resume_checkpoint(options, model, optimizer, extra=extra, notes=lambda text: None)
    assert same(model, content()[0])
    assert ckpt("convert", target, tmp_path / "back", "--checkpoint_format", "statedict").status == 0
    assert same(read_ckpt(tmp_path / "back" / "model.ckpt")["w"].array, content()[0]["w"])


def test_a_refusal_of_one_part_writes_nothing(
    ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path
) -> None:
    def complex_momentum(model: Any, optimizer: Any) -> None:
        optimizer["exp_avg"]["w"] = np.ones(2, np.complex64)

    source = step("msgpack", change=complex_momentum)
    ended = ckpt("convert", source, tmp_path / "new", "--checkpoint_format", "statedict")
    assert (ended.status, ended.out) == (1, "")
    assert "exp_avg.w: dtype c64 cannot be stored" in ended.err
    assert "'optimizer'" in ended.err
    assert left_in(tmp_path, "run") == []


def test_a_failure_at_the_very_end_leaves_nothing(
    ckpt: Callable[..., Any],
    step: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*given: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ckptio.training.step_conversion, "publish_new", full)
    ended = ckpt("convert", step(), tmp_path / "new", "--checkpoint_format", "npz")
    assert ended.status == 1
    assert "No space left on device" in ended.err
    assert left_in(tmp_path, "run") == []


def test_what_cannot_be_a_target_or_source(
    ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path
) -> None:
    source = step()
    (tmp_path / "there").mkdir()
    broken = tmp_path / "broken"
    shutil.copytree(source, broken)
    (broken / "optimizer.ckpt").unlink()
    npz = ("--checkpoint_format", "npz")
    for argv, status, words in (
        ((source, tmp_path / "new"), 1, "--checkpoint_format"),
        ((source, tmp_path / "there", *npz), 1, "takes no other's place"),
        ((source, tmp_path / "absent" / "new", *npz), 1, "No such directory"),
        ((source, tmp_path / "checkpoint_step_000008", *npz), 1, "step 8"),
        ((broken, tmp_path / "new", *npz), 1, "optimizer.ckpt is missing"),
        ((source, tmp_path / "new", *npz, "--overwrite"), 2, "--overwrite"),
        ((source, tmp_path / "new", *npz, "--select", "w"), 2, "--select"),
        ((source, tmp_path / "new", *npz, "--drop", "w"), 2, "--drop"),
        ((source, tmp_path / "new", *npz, "-O", "a=b"), 2, "-O"),
        ((source / "model.ckpt", tmp_path / "new", *npz, "--optimizer_dtype", "f16"), 2, "--optimizer_dtype"),
    ):
        ended = ckpt("convert", *argv)
        assert (ended.status, ended.out) == (status, ""), argv
        assert words in ended.err
        assert left_in(tmp_path, "run", "there", "broken") == []


def test_the_report_tells_of_every_part(
    ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path
) -> None:
    argv = ("convert", step(), tmp_path / "new", "--checkpoint_format", "npz", "--json")
    report = json.loads(ckpt(*argv).out)
    assert report["step"] == 7
    for name in ("model", "optimizer", "ema"):
        part = report["parts"][name]
        assert Path(part["target"]) == tmp_path / "new" / f"{name}.npz"
        assert Path(part["target"]).is_file()
        assert {fate["actions"][0] for fate in part["fates"] if fate["kind"] == "tensor"} == {"copied"}


# verify


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_verify_a_whole_step(ckpt: Callable[..., Any], step: Callable[..., Path]) -> None:
    path = step()
    ended = ckpt("verify", path)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"{path}: step 7, complete\n")
    assert ended.out.count(": whole\n") == 3
    assert ended.out.count("checksums: that of the manifest fits") == 3
    found = json.loads(ckpt("verify", path, "--json").out)
    assert (found["ok"], found["manifest"], list(found["parts"])) == (
        True,
        True,
        ["model", "optimizer", "ema"],
    )


@pytest.mark.parametrize("name", ["model.ckpt", "optimizer.ckpt", "ema.ckpt", "trainer_state.json"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip_last_byte, "CRC-32"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "the manifest says"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\n"), "the manifest says"),
        (Path.unlink, "missing"),
    ],
    ids=["a bit", "cut", "longer", "missing"],
)
def test_verify_finds_damage(
    ckpt: Callable[..., Any],
    step: Callable[..., Path],
    name: str,
    damage: Callable[[Path], None],
    words: str,
) -> None:
    path = step()
    damage(path / name)
    ended = ckpt("verify", path)
    assert ended.status == 1
    assert "NOT complete" in ended.out
    assert name in ended.out
    if name != "trainer_state.json":
        assert words in ended.out
    found = json.loads(ckpt("verify", path, "--json").out)
    assert (found["ok"], found["complete"]) == (False, False)


def test_verify_without_a_manifest(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    ended = ckpt("verify", NATIVE)
    assert ended.status == 0
    assert "complete; no manifest" in ended.out
    path = tmp_path / "checkpoint_step_000002"
    shutil.copytree(NATIVE, path)
    os.truncate(path / "optimizer.ckpt", 1000)
    assert ckpt("verify", path).status == 1


# inspect


def test_inspect_shows_the_state_and_every_part(ckpt: Callable[..., Any], step: Callable[..., Path]) -> None:
    path = step()
    ended = ckpt("inspect", path)
    assert (ended.status, ended.err) == (0, "")
    for line in ("    global_step: 7", "    consumed_samples: 112", "    last_lr: 0.30000000000000004"):
        assert line in ended.out.splitlines()
    for part, row in (("model", "w "), ("optimizer", "exp_avg.w "), ("ema", "w ")):
        block = ended.out.split(f"\n{part}: ")[1]
        assert any(line.startswith(row) for line in block.splitlines())
    found = json.loads(ckpt("inspect", path, "--json").out)
    assert found["state"]["consumed_samples"] == 112
    assert [each["name"] for each in found["parts"]["optimizer"]["tensors"]] == ["exp_avg.w", "step"]


def test_inspect_filters_all_parts(ckpt: Callable[..., Any], step: Callable[..., Path]) -> None:
    path = step()
    found = json.loads(ckpt("inspect", path, "--filter", "exp_avg.*", "--stats", "--json").out)
    assert list(found["parts"]) == ["optimizer"]
    (row,) = found["parts"]["optimizer"]["tensors"]
    assert row["stats"]["max"] == float(content()[1]["exp_avg"]["w"].max())
    ended = ckpt("inspect", path, "--filter", "nothing")
    assert (ended.status, ended.out) == (1, "")


def test_inspect_a_damaged_step(ckpt: Callable[..., Any], step: Callable[..., Path]) -> None:
    path = step()
    os.truncate(path / "model.ckpt", 5)
    ended = ckpt("inspect", path)
    assert "NOT complete: model.ckpt has 5 bytes" in ended.out
    assert "exp_avg.w" in ended.out
    (path / "trainer_state.json").unlink()
    assert "exp_avg.w" in ckpt("inspect", path).out


def test_a_directory_of_shards_is_no_step(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    source = golden("hf/llama_tied_fp16_sharded/model.safetensors.index.json").parent
    shutil.copytree(source, tmp_path / "checkpoint-500")
    (tmp_path / "checkpoint-500" / "trainer_state.json").write_text('{"global_step": 500}')
    found = json.loads(ckpt("inspect", tmp_path / "checkpoint-500", "--json").out)
    assert found["format"] == "safetensors"
    assert ckpt("verify", tmp_path / "checkpoint-500").status == 0


# diff


def test_diff_of_one_step_in_two_formats_is_equal(
    ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path
) -> None:
    one = step()
    ckpt("convert", one, tmp_path / "other", "--checkpoint_format", "npz")
    ended = ckpt("diff", one, tmp_path / "other")
    assert ended.status == 0, ended.out
    assert '~ state checkpoint_format: "statedict" -> "npz" (does not count)' in ended.out
    assert json.loads(ckpt("diff", one, tmp_path / "other", "--json").out)["equal"] is True


def test_diff_tells_what_differs(ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path) -> None:
    def larger(model: Any, optimizer: Any) -> None:
        optimizer["exp_avg"]["w"][0, 0] += 1

    one, other = step(), step(run="other", change=larger)
    ended = ckpt("diff", one, other)
    assert ended.status == 1
    assert "~ exp_avg.w: 1 of 12 elements differ" in ended.out
    found = json.loads(ckpt("diff", one, other, "--json").out)
    assert found["parts"]["model"]["equal"]
    assert not found["parts"]["optimizer"]["equal"]
    assert ckpt("diff", one, other, "--atol", "1.001").status == 0
    manifest = json.loads((other / "manifest.json").read_text())
    del manifest["parts"]["ema"]
    (other / "manifest.json").write_text(json.dumps(manifest))
    ended = ckpt("diff", one, other)
    assert "- part ema" in ended.out.splitlines()


def test_diff_of_trainer_states(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    other = tmp_path / "checkpoint_step_000002"
    shutil.copytree(NATIVE, other)
    assert ckpt("diff", NATIVE, other).status == 0
    text = (other / "trainer_state.json").read_text()
    (other / "trainer_state.json").write_text(text.replace('"consumed_batches": 4', '"consumed_batches": 5'))
    ended = ckpt("diff", NATIVE, other)
    assert ended.status == 1
    assert "~ state consumed_batches: 4 -> 5" in ended.out.splitlines()


def test_diff_of_what_cannot_be_compared(
    ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path
) -> None:
    one, other = step(), step(run="other")
    (other / "model.ckpt").unlink()
    for argv in ((one, other), (one, one / "model.ckpt"), (one, tmp_path)):
        ended = ckpt("diff", *argv)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err


@pytest.mark.parametrize("command", ["inspect", "verify", "diff", "convert"])
def test_a_run_directory_is_told_from_its_steps(
    ckpt: Callable[..., Any], step: Callable[..., Path], tmp_path: Path, command: str
) -> None:
    path = step()
    further: dict[str, list[Any]] = {
        "diff": [path],
        "convert": [tmp_path / "x", "--checkpoint_format", "npz"],
    }
    more = further.get(command, [])
    ended = ckpt(command, path.parent, *more)
    assert ended.status == (2 if command == "diff" else 1)
    assert ended.err == (
        f"error: {path.parent}: a directory of step directories; name one of them, such as {path}\n"
    )
