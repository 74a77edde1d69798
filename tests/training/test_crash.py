"""Crashes, partial files, a full disk, two writers (cases C1 to C8, and P4)."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptio import IncompleteCheckpointError
from ckptio.training import (
    CheckpointOptions,
    TrainerState,
    find_step,
    latest_checkpoint,
    open_step,
    resume_checkpoint,
    save_checkpoint,
)

Begin = Callable[..., Any]
FORMATS = ("statedict", "msgpack", "safetensors", "npz", "torch")

# C1 to C3: what is not whole


def _nothing(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def _without(name: str) -> Callable[[Path], None]:
    return lambda path: next(path.glob(name)).unlink()


def _emptied(path: Path) -> None:
    for file in path.iterdir():
        file.write_bytes(b"")


def _without_manifest(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    def both(path: Path) -> None:
        (path / "manifest.json").unlink()
        damage(path)

    return both


def _longer(path: Path) -> None:
    with open(path / "model.ckpt", "ab") as file:
        file.write(b"\0")


def _no_json(path: Path) -> None:
    text = (path / "trainer_state.json").read_bytes()
    (path / "trainer_state.json").write_bytes(b"[" + text[1:])


DAMAGE = {
    "empty": (_nothing, "it is empty"),
    "no state": (_without("trainer_state.json"), "trainer_state.json is missing"),
    "no state, no manifest": (
        _without_manifest(_without("trainer_state.json")),
        "trainer_state.json is missing",
    ),
    "no model": (_without("model.ckpt"), "model.ckpt is missing"),
    "no model, no manifest": (_without_manifest(_without("model.ckpt")), "its model is missing"),
    "no optimizer": (_without("optimizer.ckpt"), "optimizer.ckpt is missing"),
    "files of no bytes": (_emptied, "manifest"),
    "files of no bytes, no manifest": (_without_manifest(_emptied), "trainer state"),
    "a longer model": (_longer, "the manifest says"),
    "a longer model, no manifest": (_without_manifest(_longer), "model.ckpt"),
    "a state that is no JSON": (_no_json, "not valid JSON"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_the_newest_complete_step_is_taken_and_the_others_are_named_with_the_reason(
    loop: Begin, run_directory: Path, damage: Callable[[Path], None], reason: str
) -> None:
    run = loop()
    run.step()
    run.save_as(1)
    wanted = run.model["w"].tobytes()
    for step in (2, 3):
        run.step()
        damage(run.save_as(step))
    for place in ("latest", str(run_directory)):
        resumed = loop(resume_from=place)
        assert resumed.state.global_step == 1
        assert resumed.model["w"].tobytes() == wanted
        for name in ("checkpoint_step_000002", "checkpoint_step_000003"):
            assert any(name in note and reason in note for note in resumed.notes)
    with pytest.raises(IncompleteCheckpointError, match="cannot be resumed") as caught:
        loop(resume_from=str(run_directory / "checkpoint_step_000003"))
    assert reason in str(caught.value)


@pytest.mark.parametrize("checkpoint_format", FORMATS)
@pytest.mark.parametrize("manifest", [True, False])
def test_a_model_cut_at_any_boundary_of_4_kib_is_passed_over(
    tmp_path: Path, checkpoint_format: str, manifest: bool
) -> None:
    options = CheckpointOptions(
        checkpoint_dir=tmp_path / "run", save_steps=1, checkpoint_format=checkpoint_format
    )
    model = {name: np.arange(3000.0) for name in ("a", "b")}
    first = save_checkpoint(options, TrainerState(global_step=1), model)
    path = save_checkpoint(options, TrainerState(global_step=2), model)
    if not manifest:
        (path / "manifest.json").unlink()
    file = next(each for each in path.glob("model.*") if not each.name.endswith(".meta.json"))
    whole = file.read_bytes()
    assert open_step(path).problem is None
    for size in range(0, len(whole), 4096):
        file.write_bytes(whole[:size])
        assert open_step(path).problem is not None, size
        found = latest_checkpoint(tmp_path / "run", notes=lambda _: None)
        assert found is not None
        assert found.path == first


def test_no_run_begins_anew_where_nothing_but_damaged_steps_are(loop: Begin, run_directory: Path) -> None:
    run = loop()
    for step in (1, 2):
        (run.save_as(step) / "trainer_state.json").unlink()
    for place in ("latest", str(run_directory)):
        with pytest.raises(IncompleteCheckpointError, match="no complete checkpoint") as caught:
            loop(resume_from=place)
        assert all(f"checkpoint_step_00000{step}: passed over" in str(caught.value) for step in (1, 2))


def test_a_damaged_byte_is_found_on_request(loop: Begin, run_directory: Path) -> None:
    run = loop()
    run.save_as(1)
    file = run.save_as(2) / "optimizer.ckpt"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    assert loop(resume_from="latest").state.global_step == 2
    careful = loop(resume_from="latest", resuming={"verify": True})
    assert careful.state.global_step == 1
    assert any("optimizer.ckpt is damaged" in note for note in careful.notes)


def test_a_manifest_that_leads_outside_is_refused(loop: Begin, tmp_path: Path) -> None:
    path = loop().save_as(1)
    manifest = json.loads((path / "manifest.json").read_text())
    (tmp_path / "x.ckpt").write_bytes((path / "model.ckpt").read_bytes())
    for name in ("../../x.ckpt", str(tmp_path / "x.ckpt")):
        text = json.dumps({**manifest, "parts": {"model": {"path": name, "format": "statedict"}}})
        (path / "manifest.json").write_text(text)
        with pytest.raises(IncompleteCheckpointError, match="no path inside"):
            find_step(path)


@pytest.mark.parametrize("seed", range(40))
def test_no_damage_of_the_small_files_is_more_than_an_incomplete_step(loop: Begin, seed: int) -> None:
    path = loop().save_as(1)
    chosen = random.Random(seed)
    file = path / chosen.choice(["manifest.json", "trainer_state.json"])
    data = bytearray(file.read_bytes())
    for _ in range(chosen.randint(1, 4)):
        data[chosen.randrange(len(data))] = chosen.randrange(256)
    file.write_bytes(bytes(data[: chosen.choice([len(data), chosen.randrange(len(data))])]))
    step = open_step(path)
    assert step.problem is None or isinstance(step.problem, str)


@pytest.mark.parametrize("name", ["manifest.json", "trainer_state.json"])
def test_a_pipe_in_the_place_of_a_file_is_passed_over_at_once(
    loop: Begin, run_directory: Path, name: str
) -> None:
    run = loop()
    run.save_as(1)
    file = run.save_as(2) / name
    file.unlink()
    os.mkfifo(file)
    assert loop(resume_from="latest").state.global_step == 1
    problem = open_step(file.parent).problem
    assert problem is not None
    assert "not a regular file" in problem


def test_a_manifest_of_another_step_is_passed_over(loop: Begin) -> None:
    run = loop()
    (run.save_as(2) / "manifest.json").write_bytes((run.save_as(1) / "manifest.json").read_bytes())
    assert loop(resume_from="latest").state.global_step == 1


# C4: a full disk


def test_a_full_disk_leaves_the_last_step_as_it_was_and_nothing_else(
    loop: Begin, run_directory: Path, tmp_path: Path
) -> None:
    run = loop()
    run.save_as(1)
    before = _content(run_directory)
    program = f"""
import resource, signal
import numpy as np
from ckptio.training import CheckpointOptions, TrainerState, save_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
options = CheckpointOptions(checkpoint_dir={str(run_directory)!r}, save_steps=1, max_checkpoint_keep=1)
save_checkpoint(options, TrainerState(global_step=2), {{"w": np.zeros(1_000_000)}})
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode != 0
    assert "OSError" in ended.stderr
    assert _content(run_directory) == before


def _content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


# C5: the order of fsync and rename


def test_everything_is_on_the_disk_before_the_one_rename_and_the_directory_after_it(
    loop: Begin, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loop()
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def watched_fsync(fd: int) -> None:
        calls.append(("fsync", os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def watched_rename(old: Any, new: Any) -> None:
        calls.append(("rename", str(new)))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    target = run.save_as(1)
    at = calls.index(("rename", str(target)))
    assert calls[at + 1 :] == [("fsync", str(run_directory))]
    assert sum(verb == "rename" for verb, _ in calls) == 1
    synced = [path for verb, path in calls[:at] if verb == "fsync"]
    staging = synced[-1]
    assert Path(staging).parent == run_directory
    # Each file once, under the hidden name that it had until then, and their directory after the last.
    files = [path for path in synced if path != staging]
    assert len(files) == len(list(target.iterdir())) == 4
    assert all(path.startswith(f"{staging}/") for path in files)


# C6: two processes


def test_of_two_processes_that_save_one_step_one_publishes_and_the_other_is_told(
    run_directory: Path, tmp_path: Path
) -> None:
    program = f"""
import sys, time
import numpy as np
from pathlib import Path
import ckptio.training.writing as writing
from ckptio.training import CheckpointOptions, TrainerState, save_checkpoint
mine = int(sys.argv[1])
publish = writing._publish
def meet(*rest):
    # Both have written everything before either publishes.
    Path({str(tmp_path)!r}, f"ready{{mine}}").touch()
    while not Path({str(tmp_path)!r}, f"ready{{1 - mine}}").exists():
        time.sleep(0.001)
    publish(*rest)
writing._publish = meet
options = CheckpointOptions(checkpoint_dir={str(run_directory)!r}, save_steps=1)
try:
    save_checkpoint(options, TrainerState(global_step=1), {{"w": np.full(10, float(mine))}})
except FileExistsError as error:
    print(error)
    sys.exit(3)
"""
    run_directory.mkdir()
    both = [
        subprocess.Popen([sys.executable, "-c", program, str(mine)], stdout=subprocess.PIPE, text=True)
        for mine in (0, 1)
    ]
    said = [process.communicate(timeout=60)[0] for process in both]
    codes = [process.returncode for process in both]
    assert sorted(codes) == [0, 3]
    assert "Another process has saved this step meanwhile" in said[codes.index(3)]
    assert [path.name for path in run_directory.iterdir()] == ["checkpoint_step_000001"]
    step = find_step(run_directory, checksums=True)
    model = {"w": np.zeros(10)}
    resume_checkpoint(CheckpointOptions(resume_from=str(step.path)), model)
    assert model["w"].tolist() == [float(codes.index(0))] * 10


# C7: leftovers


def test_where_only_a_leftover_is_a_run_begins_anew_and_names_it(loop: Begin, run_directory: Path) -> None:
    leftover = run_directory / ".checkpoint_step_000001-0123456789abcdef.tmp"
    leftover.mkdir(parents=True)
    (leftover / "model.ckpt").write_bytes(b"CKPT")
    run = loop(resume_from="latest")
    assert run.state.global_step == 0
    assert any("no complete checkpoint" in note and leftover.name in note for note in run.notes)
    with pytest.raises(IncompleteCheckpointError, match="no complete checkpoint") as caught:
        loop(resume_from=str(run_directory))
    assert leftover.name in str(caught.value)


def test_a_save_cleans_own_leftovers_that_no_process_holds_and_nothing_else(
    loop: Begin, run_directory: Path, tmp_path: Path
) -> None:
    names = (".checkpoint_step_000001-0123456789abcdef.tmp", ".mine-0123456789abcdef.tmp", ".ckptio-12.tmp")
    for name in names:
        (run_directory / name).mkdir(parents=True)
        os.utime(run_directory / name, (1, 1))
    young = run_directory / ".checkpoint_step_000002-0123456789abcdef.tmp"
    young.mkdir()
    held = run_directory / ".checkpoint_step_000003-0123456789abcdef.tmp"
    held.mkdir()
    os.utime(held, (1, 1))
    holder = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), 2); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, held], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        run = loop()
        run.save_as(5)
        process.communicate("\n")
    left = {path.name for path in run_directory.iterdir()}
    assert left == {*names[1:], young.name, held.name, "checkpoint_step_000005"}
    assert any(names[0] in note and "removed" in note for note in run.notes)


# C8: a place that cannot be


def test_a_checkpoint_directory_that_is_a_file_is_refused_before_any_work(
    loop: Begin, run_directory: Path
) -> None:
    run_directory.write_text("mine")
    with pytest.raises(NotADirectoryError, match="is a file"):
        loop()


def test_a_missing_parent_is_refused_before_any_work(loop: Begin, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such directory"):
        loop(checkpoint_dir=tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


def test_a_directory_without_write_permission_is_refused_before_any_work(
    loop: Begin, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_directory.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != run_directory)
    with pytest.raises(PermissionError, match="No permission to write"):
        loop()


# P4: killed


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.02, 0.04])
def test_after_a_kill_inside_the_second_save_the_first_still_loads(delay: float) -> None:
    program = """
import sys
import numpy as np
from ckptio.training import CheckpointOptions, TrainerState, save_checkpoint
options = CheckpointOptions(checkpoint_dir=sys.argv[1], save_steps=1, max_checkpoint_keep=1)
model = {f"w{number}": np.full(50_000, 1.0) for number in range(20)}
save_checkpoint(options, TrainerState(global_step=1), model)
print("saved", flush=True)
for array in model.values():
    array += 1
save_checkpoint(options, TrainerState(global_step=2), model)
"""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        process = subprocess.Popen([sys.executable, "-c", program, run], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        step = find_step(run, checksums=True)
        model = {f"w{number}": np.zeros(50_000) for number in range(20)}
        state = resume_checkpoint(CheckpointOptions(resume_from=str(run)), model, notes=lambda _: None)
        assert state.global_step == step.step
        assert all((array == step.step).all() for array in model.values())


# The manifest


@pytest.mark.parametrize("checkpoint_format", FORMATS)
@pytest.mark.parametrize("elements", [10, 3_000_000])
def test_the_manifest_has_the_size_and_checksum_of_every_file(
    tmp_path: Path, checkpoint_format: str, elements: int
) -> None:
    options = CheckpointOptions(
        checkpoint_dir=tmp_path, save_steps=1, checkpoint_format=checkpoint_format, max_checkpoint_keep=1
    )
    values = np.random.default_rng(1).integers(0, 2**31, elements, dtype=np.int32)
    model = {"a": values, "b": values[::-1], "tied": values}
    path = save_checkpoint(options, TrainerState(global_step=1), model)
    manifest = json.loads((path / "manifest.json").read_text())
    found = {
        each.name: {"size": each.stat().st_size, "crc32": f"{zlib.crc32(each.read_bytes()):08x}"}
        for each in path.iterdir()
        if each.name != "manifest.json"
    }
    assert manifest["files"] == found
    assert manifest["step"] == 1
