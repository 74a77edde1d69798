"""InfiniTrain's own runs: their steps are listed, and training goes on from them with their losses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ckptio.training import list_checkpoints
from entries import Run, train
from golden import all_golden, golden, golden_id

RUNS = {"gpt2_sgd": 1e-5, "gpt2_adam": 1e-5, "llama3_adam": 2e-5}
FOLDERS = sorted({path.parents[1] for path in all_golden("infinitrain/runs/*/ckpt/*/trainer_state.json")})
# The runs end after step 6, so there is no loss to compare with after that one.
STEPS = [
    path.parent
    for run in RUNS
    for path in all_golden(f"infinitrain/runs/{run}/ckpt/*[0-5]/trainer_state.json")
]


def run_like(run: str, *flags: object) -> Run:
    """Run our entry with the flags of theirs, on their data."""
    theirs = json.loads(golden(f"infinitrain/runs/{run}/run.json").read_bytes())
    model = run.partition("_")[0]
    start = ["--llmc_filepath", golden(theirs["llmc_bin"]), "--input_bin", golden(theirs["tokens"])]
    # Theirs has a constant learning rate; the later of two equal flags counts.
    constant = ["--schedule", "constant", "--warmup_iteration", "0"]
    return train(model, *theirs["args"].split(), *start, *constant, *flags)


def losses(run: str, log: str) -> dict[int, float]:
    text = golden(f"infinitrain/runs/{run}/{log}").read_text()
    return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+)/\d+ \| train loss (\S+)", text)}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_each_step_of_a_run_is_listed_as_whole(folder: Path) -> None:
    steps = list_checkpoints(folder)
    assert [step.path for step in steps] == sorted(folder.iterdir())
    for step in steps:
        assert (step.problem, step.manifest) == (None, None)
        assert step.state is not None
        assert (step.state.global_step, step.state.consumed_batches) == (step.step, 2 * step.step)


@pytest.mark.parametrize("step", STEPS, ids=golden_id)
def test_the_first_loss_after_resuming_is_theirs(step: Path) -> None:
    run, number = step.parents[1].name, int(step.name[-6:])
    unbroken = losses(run, "noresume.losses")
    ours = run_like(run, "--resume_from", step, "--allow", "optimizer", "--num_iteration", number + 1)
    assert ours.status == 0, ours.said
    assert ours.losses.keys() == {number + 1}
    assert ours.losses[number + 1] == pytest.approx(unbroken[number + 1], rel=0, abs=RUNS[run])
    if number == 4:
        resumed = losses(run, "resume_from_000004.losses")
        assert ours.losses[5] == pytest.approx(resumed[5], rel=0, abs=RUNS[run])


def test_their_optimizer_is_not_taken_for_ours() -> None:
    step = next(step for step in STEPS if step.parents[1].name == "gpt2_adam")
    ours = run_like("gpt2_adam", "--resume_from", step)
    assert (ours.status, ours.losses) == (1, {})
    assert "optimizer: saved by another program" in ours.said


def test_a_whole_run_with_sgd_has_their_losses() -> None:
    ours = run_like("gpt2_sgd", "--optimizer", "sgd")
    assert ours.status == 0, ours.said
    assert ours.losses == pytest.approx(losses("gpt2_sgd", "noresume.losses"), rel=0, abs=1e-5)
