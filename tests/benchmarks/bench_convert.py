"""How fast ``ckptio`` converts a GPT-2 of 1 GiB, beside ``cp``, safetensors and torch in one run.

Usage: ``python tests/benchmarks/bench_convert.py [--gib 1.0] [--rounds 7] [--folder DIR]``

All cases alternate, round by round, on one file system, and each starts without its target. It prints
minima, medians, the ratio to ``cp`` of the same source followed by fsync of the copy, and peak resident
memory, then the start-up of the command line. The exit status is 1 when a bar of `BARS` is missed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from measuring import MB, Samples, Worker, command, copy_with_cp, table

FORMATS = {
    "llmc": ".bin",
    "statedict": ".ckpt",
    "msgpack": ".msgpack",
    "safetensors": ".safetensors",
    "torch": ".pt",
    "npz": ".npz",
}
ZIPS = ("torch", "npz")
BARS = {
    "warm": 1.5,
    "zip": 2.0,
    "cast": 2.5,
    "command_extra": 0.5,
    "peak": 120 * MB,
    "inspect": 0.15,
    "help": 1.25,
}
TYPER_PROGRAM = (
    "import typer\napp = typer.Typer()\n@app.command()\ndef main(name: str):\n    print(name)\napp()\n"
)


@dataclass(slots=True)
class Case:
    """One thing that is measured: what to run, beside the ``cp`` of which source, and its bar (a ratio)."""

    label: str
    source: str
    run: Callable[[], tuple[float, int]]
    bar: float | None = None
    extra: float = 0.0
    samples: Samples = field(default_factory=Samples)


def make_llmc(path: Path, gib: float) -> None:
    """Write a GPT-2 in llm.c's layout, laid out here by hand: a header and random values."""
    width, block, vocab, padded = 1024, 1024, 50257, 50304
    layers = max(1, round((gib * 2**30 / 4 - (padded + block) * width) / (12 * width * width + 13 * width)))
    values = (padded + block) * width + layers * (12 * width * width + 13 * width) + 2 * width
    block_of_values = np.random.default_rng(0).standard_normal(1 << 20, dtype="<f4").tobytes()
    with open(path, "wb") as file:
        header = (20240326, 3, block, vocab, layers, 16, width, padded)
        file.write(struct.pack("<8i", *header).ljust(1024, b"\0"))
        left = 4 * values
        while left:
            left -= file.write(block_of_values[:left])
        # The rows of padding are zeros, as an export has them.
        file.seek(1024 + 4 * vocab * width)
        file.write(bytes(4 * (padded - vocab) * width))
        os.fsync(file.fileno())


class Bench:
    """The models on disk, the warm processes, and the cases over them."""

    def __init__(self, folder: Path, gib: float, formats: Sequence[str]) -> None:
        self.folder, self.target = folder, folder / "target"
        self.models = {name: folder / f"model{FORMATS[name]}" for name in formats}
        self.workers = {"ckptio": Worker("jobs")}
        make_llmc(self.models["llmc"], gib)
        for name in formats:
            if name != "llmc":
                self._convert("llmc", self.models[name], name, None)
        self.cases = [
            Case(f"cp + fsync: {name}", name, functools.partial(self._cp, name)) for name in formats
        ]
        for source in formats:
            for wanted in formats:
                self.cases += self._pair(source, wanted)
        for wanted in formats:
            label = f"llmc -> {wanted} in bf16"
            self.cases.append(Case(label, "llmc", self._warm("llmc", wanted, "bf16"), BARS["cast"]))
        for peer in ("safetensors", "torch"):
            if importlib.util.find_spec(peer):
                self.cases.append(self._peer(peer))

    def measure(self, rounds: int) -> None:
        """Run all cases in turn, ``rounds`` times, each without its target there."""
        for number in range(rounds):
            for case in self.cases:
                for left in self.folder.glob("target*"):
                    left.unlink()
                case.samples.add(case.run())
            print(f"round {number + 1} of {rounds} done", file=sys.stderr)
        for worker in self.workers.values():
            worker.close()

    def cp(self, source: str) -> float:
        """Return the least seconds of cp + fsync of that source."""
        return next(case.samples.best for case in self.cases if case.label == f"cp + fsync: {source}")

    def _cp(self, name: str) -> tuple[float, int]:
        return copy_with_cp(self.models[name], self.target)

    def _convert(self, source: str, target: Path, wanted: str, dtype: str | None) -> tuple[float, int]:
        return self.workers["ckptio"].call("convert", str(self.models[source]), str(target), wanted, dtype)

    def _warm(self, source: str, wanted: str, dtype: str | None) -> Callable[[], tuple[float, int]]:
        return lambda: self._convert(source, self.target, wanted, dtype)

    def _pair(self, source: str, wanted: str) -> list[Case]:
        whole = [sys.executable, "-m", "ckptio", "convert", "--quiet"]
        whole += [str(self.models[source]), str(self.target), "--checkpoint_format", wanted]
        label = f"{source} -> {wanted}"
        bar, extra = BARS["zip" if wanted in ZIPS else "warm"], BARS["command_extra"]
        return [
            Case(label, source, self._warm(source, wanted, None), bar),
            Case(f"ckpt convert: {label}", source, lambda: command(whole), bar, extra),
        ]

    def _peer(self, peer: str) -> Case:
        worker = self.workers[peer] = Worker(f"peers_{peer}")
        path = self.folder / f"peer.{peer}"
        worker.call("make", str(self.models["llmc"]), str(path))
        run = lambda: worker.call("load_and_save", str(path), str(self.target))  # noqa: E731
        return Case(f"{peer} load + save + fsync", "llmc", run)


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


def missed_bars(bench: Bench, starts: dict[str, Samples]) -> list[str]:
    """Return each bar that a minimum misses."""
    missed = []
    for case in bench.cases:
        if case.bar is None:
            continue
        bar = case.bar * bench.cp(case.source) + case.extra
        if case.samples.best > bar:
            missed.append(f"{case.label}: {case.samples.best:.2f} s is above {bar:.2f} s")
        if case.samples.peak > BARS["peak"]:
            missed.append(f"{case.label}: a peak of {case.samples.peak / MB:.0f} MB")
    extra = starts["ckpt inspect"].best - starts["import numpy, typer, ml_dtypes"].best
    if extra > BARS["inspect"]:
        missed.append(f"ckpt inspect: {extra:.3f} s above the imports")
    ratio = starts["ckpt --help"].best / starts["typer program --help"].best
    if ratio > BARS["help"]:
        missed.append(f"ckpt --help: {ratio:.2f} times a typer program's")
    return missed


def _row(label: str, samples: Samples, ratio: str) -> tuple[str, ...]:
    return label, f"{samples.best:.3f}", f"{samples.median:.3f}", ratio, f"{samples.peak / MB:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=1.0, help="size of the llm.c model in GiB")
    parser.add_argument(
        "--formats", default=",".join(FORMATS), help="the formats among which all pairs are tried"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="where to work (needs 10 times the size)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        bench = Bench(Path(name), given.gib, given.formats.split(","))
        bench.measure(given.rounds)
        starts = start_up(bench.models["llmc"], Path(name), given.rounds)
        size = bench.models["llmc"].stat().st_size
    rows: list[tuple[str, ...]] = [("", "min s", "median s", "x cp", "peak MB")]
    for case in bench.cases:
        rows.append(_row(case.label, case.samples, f"{case.samples.best / bench.cp(case.source):.2f}"))
    rows += [_row(label, samples, "") for label, samples in starts.items()]
    print(f"a GPT-2 of {size / 2**30:.2f} GiB in f32, {given.rounds} rounds")
    print(table(rows))
    missed = missed_bars(bench, starts)
    print("\n".join(f"MISSED: {line}" for line in missed) or "all bars hold")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
