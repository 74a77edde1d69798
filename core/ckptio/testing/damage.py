"""Promises about damaged files: an error that ckptio raises on purpose, or a right reading; nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ckptio import CkptError, TensorSpec
from ckptio.testing.bounds import memory_bound, time_bound, tracing
from ckptio.testing.harness import Harness, Sample

__all__ = ["DamagePromises"]

_SHORT = 4 << 10
_CUTS = 200
_FLIPS = 500
_SECONDS = 1.0
_MEMORY = 50 << 20
_LONGEST_MESSAGE = 20_000

Tensors = Mapping[str, tuple[TensorSpec, bytes]]


class DamagePromises(Harness):
    """Whatever a file says, reading it ends soon, in little memory, with an error or what is there."""

    def test_a_cut_file_is_refused_or_read_right(self, tmp_path: Path) -> None:
        """Cut at every length of a file under 4 KiB, else at 200 places."""
        file = self.a_file(tmp_path)
        whole = self._tensors(file)
        self._judge(file, _cuts(file.path), whole.__eq__)

    def test_a_flipped_bit_is_refused_or_read_right(self, tmp_path: Path) -> None:
        """500 bits, spread evenly: where names, dtypes and shapes are as before, one tensor may differ."""
        file = self.a_file(tmp_path)
        whole = self._tensors(file)
        specs = {name: spec for name, (spec, _) in whole.items()}

        def right(found: Tensors) -> bool:
            if {name: spec for name, (spec, _) in found.items()} != specs:
                return True
            return sum(found[name] != whole[name] for name in whole) <= 1

        self._judge(file, _flips(file.path), right)

    def _judge(self, file: Sample, damages: Iterator[str], right: Callable[[Tensors], bool]) -> None:
        """After each damage, open the file and read all of it."""
        limit = _MEMORY + 20 * sum(len(content) for _, content in _contents(file.path))
        with tracing():
            for what in damages:
                with memory_bound(limit, what), time_bound(_SECONDS, what):
                    found = self._read(file, what)
                if isinstance(found, CkptError):
                    assert 0 < len(str(found).strip()) <= _LONGEST_MESSAGE, f"{what}: no message of use"
                    continue
                for name, (spec, data) in found.items():
                    assert len(data) == spec.nbytes, f"{what}: {name} has not as many bytes as it claims"
                assert right(found), f"{what}: read without an error, but wrong"

    def _read(self, file: Sample, what: str) -> Tensors | CkptError:
        try:
            return self._tensors(file)
        except CkptError as error:
            return error
        except Exception as error:
            error.add_note(f"{what}: neither a CkptError nor a right reading")
            raise

    def _tensors(self, file: Sample) -> Tensors:
        with self.opened_alone(file.path, file.options) as checkpoint:
            return {n: (spec, b"".join(checkpoint.chunks(n))) for n, spec in checkpoint.specs.items()}


def _cuts(target: Path) -> Iterator[str]:
    """Cut each file in turn; yield what was done, and make it whole again."""
    for path, content in _contents(target):
        size = len(content)
        for length in range(size) if size < _SHORT else _spread(size, _CUTS):
            path.write_bytes(content[:length])
            yield f"{path.name} cut to {length} bytes"
        path.write_bytes(content)


def _flips(target: Path) -> Iterator[str]:
    """Flip single bits of each file in turn; yield what was done, and make it whole again."""
    files = _contents(target)
    for path, content in files:
        for bit in _spread(8 * len(content), -(-_FLIPS // len(files))):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            yield f"bit {bit} of {path.name} flipped"
        path.write_bytes(content)


def _contents(path: Path) -> list[tuple[Path, bytes]]:
    """Return the files of a checkpoint, one or a directory of them, each with its content."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return [(each, each.read_bytes()) for each in files]


def _spread(end: int, count: int) -> Iterator[int]:
    """Yield ``count`` numbers below ``end``, or all that there are, the last one among them."""
    count = min(end, count)
    return ((end - 1) * step // max(1, count - 1) for step in range(count))
