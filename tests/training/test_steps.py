"""Which checkpoint is the last one, and what may be deleted (cases P1 to P9)."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptio.training.manifest
from ckptio import IncompleteCheckpointError, OptionError
from ckptio.training import find_step, latest_checkpoint, list_checkpoints, open_step, prune_checkpoints
from golden import all_golden, golden_id

Begin = Callable[..., Any]


def steps(directory: Path) -> list[int]:
    """Return the numbers of the step directories, by their names alone."""
    return sorted(int(path.name.rpartition("_")[2]) for path in directory.glob("checkpoint_step_*[0-9]"))


def latest(directory: Path) -> int | None:
    found = latest_checkpoint(directory)
    return None if found is None else found.step


# P1: numeric order


@pytest.mark.parametrize(
    ("saved", "keep", "left"),
    [
        ([900, 1000, 9000, 10000], 2, [9000, 10000]),
        ([999999, 1000000], 1, [1000000]),
        ([9, 10, 99, 100], 3, [10, 99, 100]),
    ],
)
def test_the_newest_by_number_stay(
    loop: Begin, run_directory: Path, saved: list[int], keep: int, left: list[int]
) -> None:
    run = loop()
    for step in saved:
        run.save_as(step)
    assert [step.step for step in list_checkpoints(run_directory)] == saved
    prune_checkpoints(run_directory, keep)
    assert steps(run_directory) == left
    assert latest(run_directory) == saved[-1]


def test_a_step_has_six_digits_at_least(loop: Begin) -> None:
    run = loop()
    assert run.save_as(40).name == "checkpoint_step_000040"
    assert run.save_as(1234567).name == "checkpoint_step_1234567"


def test_a_step_that_another_process_prunes_meanwhile_is_not_there(
    loop: Begin, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loop()
    for step in (1, 2, 3):
        run.save_as(step)
    look = ckptio.training.manifest.read_manifest

    def lose(directory: Path) -> Any:
        if directory.name.endswith("3"):
            shutil.rmtree(directory)
        return look(directory)

    monkeypatch.setattr("ckptio.training.steps.read_manifest", lose)
    assert [step.step for step in list_checkpoints(run_directory)] == [1, 2]
    run.save_as(3)
    assert latest(run_directory) == 2


# P2, P9: later steps of another run


def test_the_step_just_written_is_never_deleted_and_later_ones_are_reported(
    loop: Begin, run_directory: Path
) -> None:
    old = loop()
    for step in (500, 600, 700):
        old.save_as(step)
    new = loop(max_checkpoint_keep=3)
    new.save_as(100)
    assert steps(run_directory) == [100, 600, 700]
    assert any("500, 600, 700" in note and "would take step 700" in note for note in new.notes)


def test_step_0_after_126000_is_saved_and_said(loop: Begin, run_directory: Path) -> None:
    loop().save_as(126000)
    run = loop(max_checkpoint_keep=1)
    path = run.save_as(0)
    assert path.is_dir()
    assert find_step(path).step == 0
    assert any("126000" in note for note in run.notes)


@pytest.mark.parametrize("swaps", [True, False])
def test_a_step_that_is_there_is_replaced_and_that_is_said(
    loop: Begin, run_directory: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    if not swaps:
        monkeypatch.setattr("ckptio.training.writing.exchange", lambda one, other: False)
    run = loop()
    run.step()
    first = run.save_as(5)
    before = (first / "model.ckpt").read_bytes()
    run.step()
    run.save_as(5)
    assert (first / "model.ckpt").read_bytes() != before
    assert any("step 5 is there already" in note for note in run.notes)
    assert os.listdir(run_directory) == [first.name]


def test_a_step_that_is_replaced_is_never_without_its_name(
    loop: Begin, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loop()
    target = run.save_as(5)
    rename = os.rename

    def watched(old: Any, new: Any) -> None:
        assert Path(old) != target, "a crash right after this rename would lose the step"
        rename(old, new)

    monkeypatch.setattr(os, "rename", watched)
    run.step()
    run.save_as(5)
    assert find_step(target).state == dataclasses.replace(run.state, **recorded(target))


def recorded(path: Path) -> dict[str, Any]:
    """Return what saving itself puts into a trainer state."""
    state = open_step(path).state
    assert state is not None
    return {name: getattr(state, name) for name in ("optimizer_type", "checkpoint_format", "random")}


# P3: save, check, then prune


def test_a_failed_save_prunes_nothing_and_a_good_one_leaves_what_is_to_be_kept(
    loop: Begin, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loop(max_checkpoint_keep=3)
    for step in (1, 2, 3):
        run.save_as(step)
    with monkeypatch.context() as patch:
        patch.setattr("ckptio.training.writing.write_file", _full)
        with pytest.raises(OSError, match="full"):
            run.save_as(4)
    assert steps(run_directory) == [1, 2, 3]
    for step in (5, 6):
        run.save_as(step)
        assert len(steps(run_directory)) == 3
    assert steps(run_directory) == [3, 5, 6]


def _full(*rest: object, **named: object) -> None:
    raise OSError(28, "the disk is full")


def test_keep_0_keeps_all(loop: Begin, run_directory: Path) -> None:
    run = loop(max_checkpoint_keep=0)
    for step in range(6):
        run.save_as(step)
    assert steps(run_directory) == list(range(6))
    assert prune_checkpoints(run_directory, 0) == []


@pytest.mark.parametrize("keep", [-1, True, 1.5])
def test_a_keep_that_is_no_count_is_refused(run_directory: Path, keep: Any) -> None:
    with pytest.raises(OptionError, match="from 0 up"):
        prune_checkpoints(run_directory, keep)


def test_a_dry_run_names_what_would_go_and_removes_nothing(loop: Begin, run_directory: Path) -> None:
    run = loop()
    paths = [run.save_as(step) for step in (1, 2, 3)]
    assert prune_checkpoints(run_directory, 1, dry_run=True) == paths[:2]
    assert steps(run_directory) == [1, 2, 3]


# P5: protected steps


@pytest.mark.parametrize("by_path", [False, True])
def test_the_best_and_the_newest_stay(loop: Begin, run_directory: Path, by_path: bool) -> None:
    run = loop(max_checkpoint_keep=2)
    best = run.save_as(1)
    for step in (2, 3):
        run.save_as(step, protect=[best if by_path else 1])
    assert steps(run_directory) == [1, 3]


def test_all_that_are_protected_stay_even_beyond_the_count(loop: Begin, run_directory: Path) -> None:
    run = loop()
    for step in (1, 2, 3, 4):
        run.save_as(step)
    prune_checkpoints(run_directory, 1, protect=[1, 2])
    assert steps(run_directory) == [1, 2]


# P6: nothing else is touched


def test_pruning_touches_step_directories_alone_and_follows_no_link(
    loop: Begin, run_directory: Path, tmp_path: Path
) -> None:
    run = loop()
    outside = tmp_path / "outside"
    for name in ("best", "checkpoint_step_000040.keep", "checkpoint_final"):
        (run_directory / name).mkdir()
        (run_directory / name / "file").write_text("mine")
    (run_directory / "checkpoint_step_5").write_text("a file")
    kept = run.save_as(6)
    kept.rename(outside)
    (run_directory / "checkpoint_step_000006").symlink_to(outside)
    run.save_as(7)
    run.save_as(8)
    prune_checkpoints(run_directory, 1)
    assert sorted(os.listdir(run_directory)) == [
        "best",
        "checkpoint_final",
        "checkpoint_step_000006",
        "checkpoint_step_000008",
        "checkpoint_step_000040.keep",
        "checkpoint_step_5",
    ]
    assert find_step(outside).problem is None
    assert all((run_directory / name / "file").exists() for name in ("best", "checkpoint_final"))


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_in_the_way_of_a_step_is_refused_before_any_work(
    loop: Begin, run_directory: Path, tmp_path: Path, kind: str
) -> None:
    run = loop()
    place = run_directory / "checkpoint_step_000001"
    if kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(tmp_path)
    with pytest.raises(OptionError, match="in the way"):
        run.save_as(1)
    assert os.listdir(run_directory) == [place.name]


# P7: names


def test_names_that_are_no_steps_are_ignored_with_a_note(loop: Begin, run_directory: Path) -> None:
    run = loop()
    for step in (9, 10, 100):
        run.save_as(step).rename(run_directory / f"checkpoint_step_{step}")
    for name in ("checkpoint_step_abc", "checkpoint_step_-1", "latest"):
        (run_directory / name).mkdir()
    notes: list[str] = []
    found = latest_checkpoint(run_directory, notes=notes.append)
    assert found is not None
    assert found.path.name == "checkpoint_step_100"
    assert len(notes) == 1
    assert all(name in notes[0] for name in ("checkpoint_step_abc", "checkpoint_step_-1", "latest"))


# P8: a directory without a number


def test_checkpoint_final_has_the_step_of_its_trainer_state(loop: Begin, run_directory: Path) -> None:
    run = loop()
    run.save_as(20)
    run.save_as(30).rename(run_directory / "checkpoint_final")
    assert [(step.path.name, step.step) for step in list_checkpoints(run_directory)] == [
        ("checkpoint_step_000020", 20),
        ("checkpoint_final", 30),
    ]
    assert loop(resume_from="latest").state.global_step == 30
    assert loop(resume_from=str(run_directory / "checkpoint_final")).state.global_step == 30


# InfiniTrain's own directories


STATES = all_golden("infinitrain/runs/*/ckpt/checkpoint_step_*/trainer_state.json")


@pytest.mark.parametrize("path", STATES, ids=golden_id)
def test_the_directories_of_infinitrain_are_complete_without_a_manifest(path: Path) -> None:
    step = open_step(path.parent)
    number = int(path.parent.name[-6:])
    assert (step.step, step.problem, step.manifest) == (number, None, None)
    # Every run took two batches a step (run.json: 64 tokens a step, 32 a batch).
    assert step.state is not None
    assert (step.state.consumed_batches, step.state.unknown["n_head"]) == (2 * number, _heads(path))


def _heads(path: Path) -> int:
    # What the file says is the default of the program, not the model's.
    return 32 if "llama3" in str(path) else 12


def test_a_directory_whose_trainer_state_is_of_another_step_is_not_taken(
    loop: Begin, run_directory: Path
) -> None:
    run = loop()
    run.save_as(3)
    path = run.save_as(7)
    state = json.loads((path / "trainer_state.json").read_text())
    text = json.dumps({**state, "global_step": 5})
    (path / "trainer_state.json").write_text(text)
    assert latest(run_directory) == 3
    with pytest.raises(IncompleteCheckpointError, match="step 5"):
        find_step(path)
