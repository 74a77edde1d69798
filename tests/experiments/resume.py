"""Interrupted training against training that never stopped, in every checkpoint format.

Usage: ``python tests/experiments/resume.py [--model gpt2 llama3] [--dtype float32 bfloat16] …``

For each model, dtype and format an entry of ``examples`` trains four times: to the end; to the end from a
middle checkpoint of that run; until SIGKILL at a random moment; and on from the latest checkpoint that this
one left. Losses must be the same to the last printed digit at every common step, and the files of the last
checkpoint the same to the last byte. A table is printed; the exit status is 1 when a case fails.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from ckptio.losses import compare_losses, read_losses

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FORMATS = ("statedict", "msgpack", "safetensors", "llmc")
# Each run is a process of its own, forked off one that has imported torch: that takes longer than the runs.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["torch", "torch._dynamo", "torch._inductor"])
_PATIENCE = 600.0
"""Seconds after which a run that has not come to the step at which it is to be killed is given up."""


@dataclass(frozen=True)
class Case:
    """What is trained, and how it is saved."""

    model: str
    dtype: str
    checkpoint_format: str

    def __str__(self) -> str:
        return f"{self.model}_{self.dtype}_{self.checkpoint_format}"


@dataclass(frozen=True)
class Plan:
    """How long, how often, from where again, and the further flags of the entry."""

    iterations: int = 100
    every: int = 20
    keep: int = 10
    resume_at: int = 40
    flags: tuple[str, ...] = ("--model", "tiny", "--device", "cpu")


@dataclass(frozen=True)
class Outcome:
    """What was seen of one case; without ``faults`` it passed."""

    case: Case
    common: int
    matched: int
    largest: Decimal | None
    killed_after: int
    faults: tuple[str, ...]


class Runs:
    """The runs of one case, each with its log and its checkpoints under ``folder``."""

    def __init__(self, case: Case, plan: Plan, folder: Path) -> None:
        self.case, self.plan, self.folder = case, plan, folder

    def log(self, run: str) -> Path:
        return self.folder / f"{run}_{self.case.dtype}.log"

    def step(self, run: str, number: int) -> Path:
        return self.folder / run / f"checkpoint_step_{number:06d}"

    def start(self, run: str, resume_from: str | Path | None = None) -> ForkServerProcess:
        """Start a run; its log lines are added to those that it has."""
        flags = [*self.plan.flags, "--dtype", self.case.dtype]
        flags += ["--checkpoint_format", self.case.checkpoint_format]
        flags += ["--num_iteration", str(self.plan.iterations), "--save_steps", str(self.plan.every)]
        flags += ["--max_checkpoint_keep", str(self.plan.keep), "--checkpoint_dir", str(self.folder / run)]
        if resume_from is not None:
            flags += ["--resume_from", str(resume_from)]
        process = _PROCESSES.Process(
            target=train, args=(self.case.model, flags, self.log(run), self.folder / f"{run}.err")
        )
        process.start()
        return process

    def finish(self, run: str, resume_from: str | Path | None = None) -> None:
        """Run to the end; RuntimeError with what it said when it does not get there."""
        process = self.start(run, resume_from)
        process.join()
        if process.exitcode != 0:
            said = (self.folder / f"{run}.err").read_text()
            raise RuntimeError(f"{self.case}: the run {run!r} ended with {process.exitcode}: {said}")

    def kill(self, run: str, after: int, delay: float) -> int:
        """Start a run and kill it with SIGKILL ``delay`` seconds after it has finished step ``after``.

        One that was done already is started again, to be killed earlier. Returns that step.
        """
        while not self._killed(run, after, delay):
            shutil.rmtree(self.folder / run, ignore_errors=True)
            self.log(run).unlink()
            after, delay = max(1, after // 2), 0.0
        return after

    def _killed(self, run: str, after: int, delay: float) -> bool:
        log, deadline = self.log(run), time.monotonic() + _PATIENCE
        process = self.start(run)
        while process.is_alive() and time.monotonic() < deadline:
            if log.exists() and max(read_losses(log), default=0) >= after:
                time.sleep(delay)
                break
            time.sleep(0.002)
        process.kill()
        process.join()
        if process.exitcode == 0 and (after > 1 or delay):
            return False
        if process.exitcode != -signal.SIGKILL or time.monotonic() > deadline:
            said = f"ended with {process.exitcode}"
            raise RuntimeError(f"{self.case}: the run {run!r} was not killed on its way, but {said}")
        return True


def train(model: str, flags: Sequence[str], log: Path, errors: Path) -> None:
    """Run an entry in this process, whose output is added to two files from now on."""
    for path, descriptor in ((log, 1), (errors, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), descriptor)
    import torch

    # Models this small are slower on several threads.
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLES))
    raise SystemExit(importlib.import_module(f"train_{model}").main(flags))


def run_case(case: Case, plan: Plan, folder: Path, dice: random.Random) -> Outcome:
    """Train four times, and compare."""
    folder.mkdir(parents=True)
    runs = Runs(case, plan, folder)
    runs.finish("whole")
    runs.finish("resumed", runs.step("whole", plan.resume_at))
    after = runs.kill("killed", dice.randrange(1, plan.iterations), dice.random() * 0.05)
    runs.finish("killed", "latest")
    return Outcome(case, *_compare_resumed(runs), after, tuple(_faults(runs)))


def _compare_resumed(runs: Runs) -> tuple[int, int, Decimal | None]:
    found = compare_losses(read_losses(runs.log("whole")), read_losses(runs.log("resumed")), Decimal(0))
    return len(found.common), found.matched, found.largest


def _faults(runs: Runs) -> Iterator[str]:
    """Yield each way in which an interrupted run is not the one that never stopped."""
    plan = runs.plan
    every, rest = set(range(1, plan.iterations + 1)), set(range(plan.resume_at + 1, plan.iterations + 1))
    whole = read_losses(runs.log("whole"))
    for run, steps in (("whole", every), ("resumed", rest), ("killed", every)):
        losses = read_losses(runs.log(run))
        if losses.keys() != steps:
            yield f"{run}: steps {sorted(losses.keys() ^ steps)} are missing or too many"
        found = compare_losses(whole, losses, Decimal(0))
        if not found.equal():
            yield f"{run}: {found.summary()}, the largest difference is {found.largest}"
        yield from _different_files(runs.step("whole", plan.iterations), runs.step(run, plan.iterations))


def _different_files(one: Path, other: Path) -> Iterator[str]:
    names = sorted({path.name for step in (one, other) for path in step.iterdir()})
    for name in names:
        if not (one / name).exists() or not (other / name).exists():
            yield f"{name} is only in one of {one.parent.name} and {other.parent.name}"
        elif (one / name).read_bytes() != (other / name).read_bytes():
            yield f"{name} differs between {one.parent.name} and {other.parent.name}"


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes in Markdown."""
    lines = [
        "| model | dtype | format | common steps matched | largest difference | killed after | last files |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        case = each.case
        cells = (
            case.model,
            case.dtype,
            case.checkpoint_format,
            f"{each.matched}/{each.common}",
            each.largest,
        )
        last = "; ".join(each.faults) or "the same bytes"
        lines.append(f"| {' | '.join(map(str, cells))} | {each.killed_after} | {last} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", nargs="+", choices=["gpt2", "llama3"], default=["gpt2", "llama3"])
    add("--dtype", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    add("--format", nargs="+", default=list(FORMATS))
    add("--iterations", type=int, default=Plan.iterations)
    add("--every", type=int, default=Plan.every, help="steps between two checkpoints")
    add("--keep", type=int, default=Plan.keep)
    add("--resume_at", type=int, default=Plan.resume_at)
    add("--seed", type=int, default=0, help="of the moments at which runs are killed")
    add("--folder", type=Path, help="where to keep logs and checkpoints (default: nowhere)")
    add("flags", nargs="*", help="further flags of the entries, after --", default=list(Plan.flags))
    given = parser.parse_args()
    plan = Plan(given.iterations, given.every, given.keep, given.resume_at, tuple(given.flags))
    cases = [Case(*each) for each in itertools.product(given.model, given.dtype, given.format)]
    outcomes, dice = [], random.Random(given.seed)
    with tempfile.TemporaryDirectory() as temporary:
        for case in cases:
            outcome = run_case(case, plan, (given.folder or Path(temporary)) / str(case), dice)
            outcomes.append(outcome)
            sys.stderr.write(f"{case}: {'passed' if not outcome.faults else outcome.faults}\n")
    sys.stdout.write(table(outcomes) + "\n")
    return 1 if any(outcome.faults for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
