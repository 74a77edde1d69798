"""How fast ``ckptio`` converts a GPT-2 of 1 GiB, beside ``cp``, safetensors and torch in one run.

Usage: ``python tests/benchmarks/bench_convert.py [--gib 1.0] [--rounds 7] [--folder DIR]``

All cases alternate, round by round, on one file system, and each starts without its target. It prints
minima, medians, ratios to ``cp`` followed by fsync of the copy, and peak resident memory, then the
start-up of the command line. The exit status is 1 when a bar is missed (the bars are in `BARS`).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measuring import MB, Samples, Worker, command, copy_with_cp, table

import ckptio

FORMATS = {"llmc": ".bin", "statedict": ".ckpt", "msgpack": ".msgpack"}
BARS = {"warm": 1.5, "cast": 2.5, "command_extra": 0.5, "peak": 120 * MB, "inspect": 0.15, "help": 1.25}
TYPER_PROGRAM = (
    "import typer\napp = typer.Typer()\n@app.command()\ndef main(name: str):\n    print(name)\napp()\n"
)


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


def make_peers(folder: Path, source: Path) -> dict[str, Path]:
    """Write the same tensors with the peers that are installed."""
    made = {}
    tensors = ckptio.load(source)
    if importlib.util.find_spec("safetensors"):
        from safetensors.numpy import save_file

        made["safetensors"] = folder / "model.safetensors"
        save_file({name: tensors[name] for name in tensors if name != "lm_head.weight"}, made["safetensors"])
    if importlib.util.find_spec("torch"):
        import torch

        made["torch"] = folder / "model.pt"
        torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, made["torch"])
    return made


def cases(folder: Path, gib: float) -> tuple[dict[str, Callable[[], tuple[float, int]]], list[Worker]]:
    """Return what is measured, by label, and the warm processes that do it."""
    models = {name: folder / f"model{suffix}" for name, suffix in FORMATS.items()}
    make_llmc(models["llmc"], gib)
    for name in ("statedict", "msgpack"):
        ckptio.convert(models["llmc"], models[name])
    peers = make_peers(folder, models["llmc"])
    ours = Worker("jobs")
    target, workers = folder / "target", [ours]
    found: dict[str, Callable[[], tuple[float, int]]] = {
        "cp + fsync": lambda: copy_with_cp(models["llmc"], target)
    }
    for source, wanted in itertools.product(FORMATS, FORMATS):
        path, ckpt = str(models[source]), [sys.executable, "-m", "ckptio", "convert", "--quiet"]
        found[f"{source} -> {wanted}"] = lambda p=path, w=wanted: ours.call(
            "convert", p, str(target), w, None
        )  # type: ignore[misc]
        whole = [*ckpt, path, str(target), "--checkpoint_format", wanted]
        found[f"ckpt convert: {source} -> {wanted}"] = lambda w=whole: command(w)  # type: ignore[misc]
    for wanted in FORMATS:
        found[f"llmc -> {wanted} in bf16"] = lambda w=wanted: ours.call(  # type: ignore[misc]
            "convert", str(models["llmc"]), str(target), w, "bf16"
        )
    for peer, path in peers.items():
        worker = Worker(f"peers_{peer}")
        workers.append(worker)
        found[f"{peer} load + save + fsync"] = lambda w=worker, p=str(path): w.call(  # type: ignore[misc]
            "load_and_save", p, str(target)
        )
    return found, workers


def measure(folder: Path, gib: float, rounds: int) -> dict[str, Samples]:
    """Run all cases in turn, ``rounds`` times."""
    todo, workers = cases(folder, gib)
    results = {label: Samples() for label in todo}
    for number in range(rounds):
        for label, run in todo.items():
            for left in folder.glob("target*"):
                left.unlink()
            results[label].add(run())
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    for worker in workers:
        worker.close()
    return results


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
    for _ in range(rounds + 1):
        for label, arguments in todo.items():
            results[label].add(command(arguments))
    for samples in results.values():
        # The first of each warms the file cache.
        del samples.seconds[0], samples.peaks[0]
    return results


def missed_bars(results: dict[str, Samples], starts: dict[str, Samples]) -> list[str]:
    """Return each bar that a minimum misses."""
    cp, missed = results["cp + fsync"].best, []
    for label, samples in results.items():
        if label == "cp + fsync" or label.endswith("load + save + fsync"):
            continue
        bar = BARS["cast" if label.endswith("bf16") else "warm"] * cp
        if label.startswith("ckpt convert"):
            bar += BARS["command_extra"]
        if samples.best > bar:
            missed.append(f"{label}: {samples.best:.2f} s is above {bar:.2f} s")
        if samples.peak > BARS["peak"]:
            missed.append(
                f"{label}: a peak of {samples.peak / MB:.0f} MB is above {BARS['peak'] / MB:.0f} MB"
            )
    extra = starts["ckpt inspect"].best - starts["import numpy, typer, ml_dtypes"].best
    if extra > BARS["inspect"]:
        missed.append(f"ckpt inspect: {extra:.3f} s above the imports")
    ratio = starts["ckpt --help"].best / starts["typer program --help"].best
    if ratio > BARS["help"]:
        missed.append(f"ckpt --help: {ratio:.2f} times a typer program's")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=1.0, help="size of the llm.c model in GiB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="where to work (needs 6 times the size)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        results = measure(folder, given.gib, given.rounds)
        starts = start_up(folder / "model.bin", folder, given.rounds)
        size = (folder / "model.bin").stat().st_size
    cp = results["cp + fsync"].best
    rows = [("", "min s", "median s", "x cp", "peak MB")]
    for label, samples in (results | starts).items():
        ratio = f"{samples.best / cp:.2f}" if label in results else ""
        rows.append(
            (label, f"{samples.best:.3f}", f"{samples.median:.3f}", ratio, f"{samples.peak / MB:.0f}")
        )
    print(f"a GPT-2 of {size / 2**30:.2f} GiB in f32, {given.rounds} rounds")
    print(table(rows))
    missed = missed_bars(results, starts)
    print("\n".join(f"MISSED: {line}" for line in missed) or "all bars hold")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
