"""Damage checkpoint files in every small way and judge what their reader makes of it.

A damaged file must give a `CkptError`, or a checkpoint that accounts for the file; never another
exception, never more than a second of the processor's time, and never more memory than 50 MB and 20
times the file. Run as a program, it does so for all golden files: ``python tests/damage.py FOLDER``.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import ckptio

SHORT = 4 << 10
LONG_CUTS = 200
FLIPPED_BITS = 2048
DATA_FLIPS = 64
SECONDS = 1.0
MEMORY = 50 << 20


class VerdictError(Exception):
    """A reader that failed the judgement."""


def cut_lengths(size: int) -> Iterator[int]:
    """Yield every length below 4 KiB and 200 beyond, from the longest to the shortest."""
    step = max(1, (size - SHORT) // LONG_CUTS)
    longer = range(SHORT, size, step) if size > SHORT else range(0)
    yield from sorted({*range(min(size, SHORT)), *longer, size - 1}, reverse=True)


def judge(path: Path, name: str, whole: dict[str, bytes], total: int) -> str:
    """Open a damaged file and read all of it; return what came of it, or raise `VerdictError`."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            checkpoint = ckptio.open(path, checkpoint_format=name)
        used = tracemalloc.get_traced_memory()[1] - before
        with checkpoint:
            found = {each: checkpoint.read(each).tobytes() for each in checkpoint.specs}
            claimed = sum(spec.nbytes for spec in checkpoint.specs.values())
            list(checkpoint.omissions())
    except ckptio.CkptError as error:
        if not str(error).strip() or len(str(error)) > 20_000:
            raise VerdictError(f"a message of {len(str(error))} characters") from None
        return "refused"
    except Exception as error:
        raise VerdictError(f"{type(error).__name__}: {error}") from error
    finally:
        seconds = time.process_time() - began
        peak = tracemalloc.get_traced_memory()[1] - before
    if seconds > SECONDS:
        raise VerdictError(f"{seconds:.1f} s")
    if max(used, peak) > MEMORY + 20 * total:
        raise VerdictError(f"{peak} bytes of memory for a file of {total}")
    if claimed > path.stat().st_size:
        raise VerdictError(f"tensors of {claimed} bytes in a file of {path.stat().st_size}")
    if sum(map(len, found.values())) != claimed:
        raise VerdictError("the tensors are not as long as the header says")
    return "the same" if found == whole else "read"


def one_element_differs(found: dict[str, bytes], whole: dict[str, bytes]) -> bool:
    """Return whether exactly one byte of one tensor differs."""
    if found.keys() != whole.keys():
        return False
    different = [name for name in whole if found[name] != whole[name]]
    if len(different) != 1 or len(found[different[0]]) != len(whole[different[0]]):
        return False
    return sum(a != b for a, b in zip(found[different[0]], whole[different[0]], strict=True)) == 1


def read_all(path: Path, name: str) -> tuple[dict[str, bytes], list[int]]:
    """Return the bytes of all tensors, and where in the file each of their pieces lies (start, end)."""
    with ckptio.open(path, checkpoint_format=name) as checkpoint:
        whole = {each: checkpoint.read(each).tobytes() for each in checkpoint.specs}
        edges = []
        for each in checkpoint.specs:
            for span in checkpoint.spans(each) or ():
                edges += [span.offset, span.offset + span.length]
    return whole, edges


def damage(path: Path, name: str, folder: Path) -> Counter[str]:
    """Cut and flip a copy of ``path`` in every way; return how often what came of it."""
    copy = folder / "damaged"
    shutil.copyfile(path, copy)
    total = path.stat().st_size
    whole, edges = read_all(copy, name)
    counts: Counter[str] = Counter()
    tracemalloc.start()
    try:
        with open(copy, "r+b", buffering=0) as file:
            for bit in range(min(FLIPPED_BITS, 8 * total)):
                _flip(file.fileno(), bit)
                counts[_judged(copy, name, whole, total, f"bit {bit} flipped")] += 1
                _flip(file.fileno(), bit)
            for bit in _data_bits(edges):
                _flip(file.fileno(), bit)
                if not one_element_differs(read_all(copy, name)[0], whole):
                    raise VerdictError(
                        f"{path}: bit {bit} of the data flipped: not just that element differs"
                    )
                counts["one element differs"] += 1
                _flip(file.fileno(), bit)
        for length in cut_lengths(total):
            os.truncate(copy, length)
            result = _judged(copy, name, whole, total, f"cut to {length} bytes")
            if result == "the same":
                raise VerdictError(f"{path}: cut to {length} bytes: not noticed")
            counts[result] += 1
    finally:
        tracemalloc.stop()
    return counts


def _judged(copy: Path, name: str, whole: dict[str, bytes], total: int, what: str) -> str:
    try:
        return judge(copy, name, whole, total)
    except VerdictError as verdict:
        raise VerdictError(f"{what}: {verdict}") from verdict.__cause__


def _flip(fd: int, bit: int) -> None:
    byte = os.pread(fd, 1, bit // 8)[0]
    os.pwrite(fd, bytes([byte ^ 1 << bit % 8]), bit // 8)


def _data_bits(edges: list[int]) -> Iterator[int]:
    """Yield bits spread over the data: in the first and last byte of pieces, and between."""
    pieces = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
    for number, (start, end) in enumerate(pieces[:: max(1, len(pieces) // DATA_FLIPS)]):
        position = (start, end - 1, (start + end) // 2)[number % 3]
        yield 8 * position + number % 8


def main(folder: Path) -> int:
    """Damage every model and optimizer file of the golden folder; print what came of it."""
    jobs = [(path, "llmc") for path in sorted(folder.glob("llmc_*/*.bin")) if "debug_state" not in path.name]
    jobs += [(path, "llmc") for path in sorted(folder.glob("llmc_state/*/model_*.bin"))]
    jobs += [(path, "statedict") for path in sorted(folder.glob("infinitrain/**/*.ckpt"))]
    jobs += [(path, "msgpack") for path in sorted(folder.glob("flax/*.msgpack"))]
    jobs += [(path, "npz") for path in sorted(folder.glob("npz/*.npy"))]
    jobs += [(path, "safetensors") for path in sorted(folder.glob("**/*.safetensors"))]
    # The views of torch/mixed_*.pt overlap: a bit of the data belongs to several tensors there.
    jobs += [(path, "torch") for path in sorted(folder.glob("torch/t*.pt"))]
    jobs += [(path, "torch") for path in sorted(folder.glob("hf/**/*.bin"))]
    failed = 0
    for path, name in jobs:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                counts = damage(path, name, Path(scratch))
            except VerdictError as verdict:
                failed += 1
                print(f"FAILED {path.relative_to(folder)}: {verdict}")
                continue
        what = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        print(f"ok {path.relative_to(folder)}: {what}", flush=True)
    print(f"{len(jobs) - failed} of {len(jobs)} files pass")
    return 1 if failed or not jobs else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
