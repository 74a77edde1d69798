"""Promises about conduct: no surprise on the disk, no file left open, no life after close."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
import warnings
from pathlib import Path

import pytest

from ckptio import CkptError, MemoryCheckpoint
from ckptio.sidecar import sidecar_path
from ckptio.testing.harness import Harness, fingerprints
from ckptio.testing.patterns import bit_patterns

__all__ = ["ConductPromises"]

_UNSAFE = ("../escape", "a/../../escape", "ROOT/escape", "..", "nul\0inside")


class ConductPromises(Harness):
    """A format reads its source, writes its output, and touches nothing else."""

    def test_writing_twice_gives_the_same_bytes(self, tmp_path: Path) -> None:
        """Under one final name; the temporary names differ."""
        self.needs_writing()
        written = []
        for folder in (tmp_path / "first", tmp_path / "second"):
            folder.mkdir()
            written.append(_listing(self.a_file(folder).path.parent))
        assert written[0] == written[1]

    def test_nothing_is_written_outside_its_output(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not into the working, temporary or home directory, nor beside the target, nor by a name's lead."""
        folders = ("target", "working", "temporary", "home")
        for folder in folders:
            (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / "working")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        file = self.a_file(tmp_path / "target")
        before = _listing(tmp_path)
        assert set(os.listdir(tmp_path / "target")) <= {file.path.name, sidecar_path(file.path).name}
        assert {path for path in before if path.parts[0] != "target"} == {Path(each) for each in folders[1:]}
        with self.opened(file.path, file.options) as checkpoint:
            fingerprints(checkpoint)
        assert _listing(tmp_path) == before

    @pytest.mark.parametrize("name", _UNSAFE, ids=ascii)
    def test_a_name_never_leads_outside(self, name: str, tmp_path: Path) -> None:
        """It is kept as the text that it is, or refused."""
        self.needs_free_names()
        target = tmp_path / "outer" / "inner"
        target.mkdir(parents=True)
        name = name.replace("ROOT", str(tmp_path))
        try:
            self.save(MemoryCheckpoint({name: bit_patterns(self.dtype, 3)}), target / "file")
        except CkptError:
            assert os.listdir(target) == []
        else:
            with self.opened_alone(target / "file") as read:
                assert read.names() == [name]
        assert os.listdir(tmp_path) == ["outer"]
        assert os.listdir(tmp_path / "outer") == ["inner"]

    def test_handles_are_closed(self, tmp_path: Path) -> None:
        """After writing, after reading, and after an opening that failed."""
        file = self.a_file(tmp_path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            gc.collect()
            before = _handles()
            with self.opened(file.path, file.options) as checkpoint:
                fingerprints(checkpoint)
            checkpoint.close()
            del checkpoint
            self._open_when_cut(file.path)
            gc.collect(1)  # what was made just now is young
            assert _handles() == before
        left_open = [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)]
        assert left_open == []

    def test_use_after_close_is_a_clear_error(self, tmp_path: Path) -> None:
        file = self.a_file(tmp_path)
        with self.opened(file.path, file.options) as checkpoint:
            name = next(name for name, spec in checkpoint.specs.items() if spec.size)
        with pytest.raises((ValueError, CkptError)) as caught:
            b"".join(checkpoint.chunks(name))
        assert "closed" in str(caught.value)
        with pytest.raises((ValueError, CkptError)):
            checkpoint.read(name)

    def _open_when_cut(self, path: Path) -> None:
        for each in [path] if path.is_file() else sorted(path.rglob("*")):
            if each.is_file():
                content = each.read_bytes()
                for length in (0, len(content) // 2, len(content) - 1):
                    each.write_bytes(content[: max(0, length)])
                    # Which exceptions there may be is another promise.
                    with contextlib.suppress(Exception):
                        self.opened_alone(path).close()
                each.write_bytes(content)


def _handles() -> int:
    """Return how many files this process has open, as far as the system says."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        if os.path.isdir(folder):
            return len(os.listdir(folder))
    return 0


def _listing(folder: Path) -> dict[Path, bytes]:
    """Return everything in a folder by its path there, with its content."""
    return {
        path.relative_to(folder): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }
