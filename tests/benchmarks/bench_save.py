"""How fast a training run is saved and resumed, beside torch.save and torch.distributed.checkpoint.

Usage: ``python tests/benchmarks/bench_save.py [--gib 1.0] [--rounds 7] [--folder DIR]``

One warm process holds a model and AdamW's moments, and saves and resumes them in each way in turn, on one
file system, each save without its target there. It prints minima, medians, the ratio to a plain write of the
same bytes followed by fsync (for a resume: to torch.load(mmap=False) and load_state_dict), and the peak of
memory above the state itself. The exit status is 1 when a bar of `BARS` is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measuring import MB, Samples, Worker, remove, table

FORMATS = ("statedict", "safetensors", "msgpack", "npz", "torch")
BARS = {"save": 1.3, "resume": 1.0}
PLAIN, LOAD = "plain write + fsync", "torch.load(mmap=False)"


@dataclass(slots=True)
class Case:
    """One thing that is measured, the label of what it is held against, and its bar (a ratio)."""

    label: str
    job: str
    target: str
    arguments: tuple[Any, ...] = ()
    beside: str = PLAIN
    bar: float | None = None
    samples: Samples = field(default_factory=Samples)


def make_cases(formats: Sequence[str]) -> list[Case]:
    """Return the cases in the order in which they run: what is resumed was saved before."""
    cases = [
        Case(PLAIN, "write_plainly", "plain"),
        Case("torch.save + fsync", "save_torch", "torch.pt"),
        Case("dcp.save", "save_dcp", "dcp"),
        *(
            Case(f"ckptio save: {each}", "save_ckptio", f"run_{each}", (each,), bar=BARS["save"])
            for each in formats
        ),
        Case(LOAD, "load_torch", "torch.pt", beside=LOAD),
        Case("dcp.load", "load_dcp", "dcp", beside=LOAD),
    ]
    for each in formats:
        label = f"ckptio resume: {each}"
        cases.append(Case(label, "resume_ckptio", f"run_{each}", beside=LOAD, bar=BARS["resume"]))
    return cases


def measure(cases: Sequence[Case], gib: float, rounds: int, folder: Path) -> None:
    """Run all cases in turn; the peaks are those above the memory of the process at rest."""
    worker = Worker("jobs_save")
    worker.call("prepare", gib, str(folder))
    for number in range(rounds):
        for case in cases:
            target = folder / case.target
            if case.job.startswith(("save", "write")):
                remove(target)
            _, at_rest = worker.call("rest")
            seconds, peak = worker.call(case.job, str(target), *case.arguments)
            case.samples.add((seconds, max(0, peak - at_rest)))
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    worker.close()


def ratio(case: Case, cases: Sequence[Case]) -> float:
    """Return the least seconds of a case over those of what it is held against."""
    return case.samples.best / next(each.samples.best for each in cases if each.label == case.beside)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=1.0, help="size of model and moments in GiB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--formats", nargs="+", default=list(FORMATS))
    parser.add_argument("--folder", type=Path, default=None, help="where to work")
    given = parser.parse_args()
    cases = make_cases(given.formats)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        measure(cases, given.gib, given.rounds, Path(name))
    rows: list[tuple[str, ...]] = [("", "min s", "median s", "ratio", "peak MB above the state")]
    for case in cases:
        best, median = f"{case.samples.best:.3f}", f"{case.samples.median:.3f}"
        peak = f"{case.samples.peak / MB:.0f}"
        rows.append((case.label, best, median, f"{ratio(case, cases):.2f}", peak))
    print(f"a state of {given.gib:g} GiB, {given.rounds} rounds")
    print(table(rows))
    missed = [
        f"{case.label}: {ratio(case, cases):.2f} times {case.beside}, the bar is {case.bar:g}"
        for case in cases
        if case.bar is not None and ratio(case, cases) > case.bar
    ]
    print("\n".join(f"MISSED: {line}" for line in missed) or "all bars hold")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
