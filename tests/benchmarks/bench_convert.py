"""How fast ``ckptio`` converts models of 1 GiB, beside ``cp``, safetensors and torch in one run.

Usage: ``python tests/benchmarks/bench_convert.py [--gib 1.0] [--rounds 7] [--folder DIR]``, and
``--groups`` with some of ``pairs`` (each pair of ``--formats``), ``narrow`` (16 bits, quantised blocks) and
``layouts`` (names and rows of other programs).

All cases alternate, round by round, on one file system, and each starts without its target. It prints
minima, medians, the ratio to ``cp`` of the same source followed by fsync of the copy, the bar, peak resident
memory and the largest tensor, then the start-up of the command line. The exit status is 1 when a bar is
missed: those of the conversions stand in `timed`, those of the start-up here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from groups import FORMATS, add_layouts, add_narrow, add_pairs, make_first
from measuring import MB, Samples, command, table
from timed import Bench, Case

GROUPS = ("pairs", "narrow", "layouts")
BARS = {"inspect": 0.15, "help": 1.25}
TYPER_PROGRAM = (
    "import typer\napp = typer.Typer()\n@app.command()\ndef main(name: str):\n    print(name)\napp()\n"
)


def start_up(model: Path, folder: Path, rounds: int) -> dict[str, Samples]:
    """Measure what starting the command line costs, beside what it is held against."""
    program = folder / "one_command.py"
    program.write_text(TYPER_PROGRAM)
    python = sys.executable
    todo = {
        "import numpy, typer, ml_dtypes": [python, "-c", "import numpy, typer, ml_dtypes"],
        "ckpt inspect": [python, "-m", "ckptio", "inspect", str(model)],
        "typer program --help": [python, str(program), "--help"],
        "ckpt --help": [python, "-m", "ckptio", "--help"],
    }
    results = {label: Samples() for label in todo}
    for _ in range(3 * rounds + 1):
        for label, arguments in todo.items():
            results[label].add(command(arguments))
    for samples in results.values():
        # The first of each warms the file cache.
        del samples.seconds[0], samples.peaks[0]
    return results


def missed_at_start(starts: dict[str, Samples]) -> list[str]:
    """Return each bar of the start-up that a minimum misses."""
    missed = []
    extra = starts["ckpt inspect"].best - starts["import numpy, typer, ml_dtypes"].best
    if extra > BARS["inspect"]:
        missed.append(f"ckpt inspect: {extra:.3f} s above the imports")
    ratio = starts["ckpt --help"].best / starts["typer program --help"].best
    if ratio > BARS["help"]:
        missed.append(f"ckpt --help: {ratio:.2f} times a typer program's")
    return missed


def case_row(bench: Bench, case: Case) -> tuple[str, ...]:
    """Return the line of a case in the table."""
    verdict = "" if case.bar is None else "MISSED" if bench.missed(case) else "holds"
    bar = "" if case.bar is None else f"{case.bar}"
    sizes = f"{case.samples.peak / MB:.0f}", f"{bench.largest[case.source] / MB:.0f}"
    return case.label, *_times(case.samples), f"{bench.ratio(case):.2f}", bar, *sizes, verdict


def _times(samples: Samples) -> tuple[str, str]:
    return f"{samples.best:.3f}", f"{samples.median:.3f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=1.0, help="size of the models in GiB")
    parser.add_argument("--groups", default=",".join(GROUPS), help="what is measured")
    parser.add_argument(
        "--formats", default=",".join(FORMATS), help="the formats among which all pairs are tried"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the rounds may take in all")
    parser.add_argument("--folder", type=Path, default=None, help="where to work (needs 25 times the size)")
    given = parser.parse_args()
    groups = given.groups.split(",")
    if set(groups) - set(GROUPS):
        parser.error(f"--groups takes {', '.join(GROUPS)}")
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        bench = Bench(Path(name))
        make_first(bench, given.gib)
        if "pairs" in groups:
            add_pairs(bench, given.formats.split(","))
        if "narrow" in groups:
            add_narrow(bench, given.gib)
        if "layouts" in groups:
            add_layouts(bench, given.gib)
        rounds = bench.measure(given.rounds, given.minutes)
        starts = start_up(bench.models["llmc"], Path(name), rounds)
    rows: list[tuple[str, ...]] = [
        ("", "min s", "median s", "x cp", "bar", "peak MB", "largest tensor MB", "")
    ]
    rows += [case_row(bench, case) for case in bench.cases]
    for label, samples in starts.items():
        rows.append((label, *_times(samples), "", "", f"{samples.peak / MB:.0f}", "", ""))
    print(f"models of {given.gib:g} GiB, {rounds} rounds")
    print(table(rows))
    missed = [line for case in bench.cases for line in bench.missed(case)] + missed_at_start(starts)
    print("\n".join(f"MISSED: {line}" for line in missed) or "all bars hold")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
