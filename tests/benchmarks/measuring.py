"""Measure work done in a warm process, and whole commands: wall-clock seconds and peak resident memory.

A `Worker` is a Python process that has imported what it needs. It is told to run a function of a
module of this folder, and answers with the seconds and the peak memory of that one call (Linux
resets the peak on request). `command` runs a program from start to end; its peak is at least that of the
process that calls it, which is therefore to import little.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MB = 1e6


@dataclass(slots=True)
class Samples:
    """The measurements of one thing: seconds, and peak resident memory in bytes, of each run."""

    seconds: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)

    def add(self, measured: tuple[float, int]) -> None:
        self.seconds.append(measured[0])
        self.peaks.append(measured[1])

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def peak(self) -> int:
        return max(self.peaks)


class Worker:
    """A warm process; ``module`` is imported there, and its function ``warm_up`` called once."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", __file__, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE,
        )
        self._answer()

    def call(self, function: str, *arguments: Any) -> tuple[float, int]:
        """Run ``function(*arguments)`` there; return its seconds and the peak memory in bytes."""
        seconds, peak, _ = self._ask(function, arguments)
        return float(seconds), int(peak)

    def result(self, function: str, *arguments: Any) -> Any:
        """Run ``function(*arguments)`` there; return what it returns, a value of JSON."""
        return self._ask(function, arguments)[2]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, function: str, arguments: tuple[Any, ...]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([function, arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the worker died; its error stands above")
        return json.loads(line)


def command(arguments: Sequence[str]) -> tuple[float, int]:
    """Run a whole command, its output thrown away; return seconds and peak memory in bytes."""
    began = time.perf_counter()
    with open(os.devnull, "wb") as nowhere:
        pid = os.posix_spawnp(
            arguments[0],
            list(arguments),
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)],
        )
        _, status, usage = os.wait4(pid, 0)
    seconds = time.perf_counter() - began
    if status != 0:
        raise RuntimeError(f"{' '.join(arguments)} failed")
    return seconds, usage.ru_maxrss * 1024


def copy_with_cp(source: Path, target: Path) -> tuple[float, int]:
    """Run ``cp``, then fsync the copy: what it takes to have a file or a folder twice, durably."""
    began = time.perf_counter()
    _, peak = command(["cp", "-r", str(source), str(target)])
    for path in (target, *target.rglob("*")):
        fsync(path)
    return time.perf_counter() - began, peak


def fsync(path: str | Path) -> None:
    """Force a file, or the entries of a directory, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def remove(target: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows in columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def _serve(module_name: str) -> None:
    sys.path.insert(0, str(HERE))
    module = importlib.import_module(module_name)
    module.warm_up()
    print(json.dumps("ready"))
    for line in sys.stdin:
        function, arguments = json.loads(line)
        Path("/proc/self/clear_refs").write_text("5")
        began = time.perf_counter()
        result = getattr(module, function)(*arguments)
        seconds = time.perf_counter() - began
        print(json.dumps([seconds, _peak(), result]))


if __name__ == "__main__":
    _serve(sys.argv[1])
