"""What `bench_convert` times: models on disk, cases over them, and the bars that these are held against."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from measuring import MB, Samples, Worker, command, copy_with_cp, remove

__all__ = ["CAST", "COPIED", "COPIED_ZIP", "REORDERED", "TRANSPOSED", "Bar", "Bench", "Case", "Kind"]


@dataclass(frozen=True, slots=True)
class Bar:
    """At most ``ratio`` times ``cp``, and ``extra`` seconds; ``peak`` bytes, and so many largest tensors."""

    ratio: float
    extra: float = 0.0
    peak: float = 120 * MB
    tensors: int = 0

    def __str__(self) -> str:
        return f"{self.ratio:g}" + (f" + {self.extra:g} s" if self.extra else "")


COPIED, COPIED_ZIP, CAST = Bar(1.5), Bar(2.0), Bar(2.5)
REORDERED = Bar(4.0)
TRANSPOSED = Bar(4.0, tensors=2)
_COMMAND_EXTRA = 0.5


@dataclass(frozen=True, slots=True)
class Kind:
    """How a model is stored: the suffix (``/`` for a folder of shards), the format and the layout."""

    suffix: str
    format: str
    layout: str | None = None


@dataclass(slots=True)
class Case:
    """One thing that is measured: what to run, beside the ``cp`` of which source, and its bar."""

    label: str
    source: str
    run: Callable[[], tuple[float, int]]
    bar: Bar | None = None
    samples: Samples = field(default_factory=Samples)


class Bench:
    """The models on disk, the warm processes, and the cases over them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.target = folder, folder / "target"
        self.models: dict[str, Path] = {}
        self.largest: dict[str, int] = {}
        self.cases: list[Case] = []
        self._kinds: dict[str, Kind] = {}
        self._workers = {"ckptio": Worker("jobs"), "making": Worker("making")}

    def make(self, name: str, kind: Kind, maker: str, *arguments: float | str) -> None:
        """Make a model with a function of `making`, and time its ``cp``."""
        path = self._path(name, kind)
        self._workers["making"].call(maker, str(path), *arguments)
        self._add(name, kind, path)

    def derive(self, name: str, kind: Kind, source: str) -> None:
        """Make a model by converting another, and time its ``cp``."""
        path = self._path(name, kind)
        self._convert(source, path, kind)
        self._add(name, kind, path)

    def time(self, source: str, wanted: str, bar: Bar, dtype: str | None = None) -> None:
        """Time the conversion of one model to the kind of another, in a warm process."""
        label = f"{source} -> {wanted}" + (f" in {dtype}" if dtype else "")
        run = functools.partial(self._convert, source, self.target, self._kinds[wanted], dtype)
        self.cases.append(Case(label, source, lambda: run(), bar))

    def time_command(self, source: str, wanted: str, bar: Bar) -> None:
        """Time the same by the whole command."""
        whole = [sys.executable, "-m", "ckptio", "convert", "--quiet", str(self.models[source])]
        whole += [str(self.target), "--checkpoint_format", self._kinds[wanted].format]
        bar = Bar(bar.ratio, _COMMAND_EXTRA, bar.peak)
        label = f"ckpt convert: {source} -> {wanted}"
        self.cases.append(Case(label, source, lambda: command(whole), bar))

    def time_peer(self, peer: str, source: str, job: str, label: str) -> None:
        """Time a library that does the same with a file of its own, made of ``source``."""
        path = self.folder / f"peer.{peer}"
        if peer not in self._workers:
            self._workers[peer] = Worker(f"peers_{peer}")
            self._workers[peer].call("make", str(self.models[source]), str(path))
        worker = self._workers[peer]
        self.cases.append(Case(label, source, lambda: worker.call(job, str(path), str(self.target))))

    def measure(self, rounds: int, minutes: float) -> int:
        """Run all cases in turn, each without its target there; return the number of rounds.

        They are ``rounds``, or fewer where one more, as long as those before, would not end in ``minutes``.
        """
        began = time.monotonic()
        for number in range(rounds):
            spent = time.monotonic() - began
            if number and spent + spent / number > 60 * minutes:
                rounds = number
                break
            for case in self.cases:
                for left in self.folder.glob("target*"):
                    remove(left)
                case.samples.add(case.run())
            print(f"round {number + 1} of {rounds} done", file=sys.stderr)
        for worker in self._workers.values():
            worker.close()
        return rounds

    def ratio(self, case: Case) -> float:
        """Return the least seconds of a case over those of cp + fsync of its source."""
        return case.samples.best / self._cp(case.source)

    def missed(self, case: Case) -> list[str]:
        """Return what a case misses of its bar, by its minimum of time and its maximum of memory."""
        if case.bar is None:
            return []
        missed = []
        seconds = case.bar.ratio * self._cp(case.source) + case.bar.extra
        if case.samples.best > seconds:
            missed.append(f"{case.label}: {case.samples.best:.2f} s is above {seconds:.2f} s")
        peak = case.bar.peak + case.bar.tensors * self.largest[case.source]
        if case.samples.peak > peak:
            missed.append(
                f"{case.label}: a peak of {case.samples.peak / MB:.0f} MB, above {peak / MB:.0f} MB"
            )
        return missed

    def _path(self, name: str, kind: Kind) -> Path:
        return self.folder / f"{name.replace(' ', '_')}{kind.suffix.rstrip('/')}"

    def _add(self, name: str, kind: Kind, path: Path) -> None:
        self.models[name], self._kinds[name] = path, kind
        self.largest[name] = self._workers["ckptio"].result("largest", str(path))
        self.cases.append(Case(f"cp + fsync: {name}", name, lambda: copy_with_cp(path, self.target)))

    def _cp(self, source: str) -> float:
        return next(case.samples.best for case in self.cases if case.label == f"cp + fsync: {source}")

    def _convert(self, source: str, target: Path, kind: Kind, dtype: str | None = None) -> tuple[float, int]:
        named = f"{target}/" if kind.suffix == "/" else str(target)
        worker = self._workers["ckptio"]
        return worker.call("convert", str(self.models[source]), named, kind.format, kind.layout, dtype)
