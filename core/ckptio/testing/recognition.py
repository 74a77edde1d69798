"""Promises about detection: a format knows its own files by their content, and claims no others."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import ckptio
from ckptio import Confidence, DType, Format, PluginError, Probe
from ckptio.detect import choose_reader, match_format
from ckptio.registry import missing_dependency, registry
from ckptio.testing.harness import Harness
from ckptio.testing.patterns import tiny_gpt2

__all__ = ["RecognitionPromises"]


class RecognitionPromises(Harness):
    """`match`, or the declared magic, settles what a file is; its name does not."""

    def test_its_own_files_are_recognised_by_content(self, tmp_path: Path) -> None:
        """Under a name without a suffix, and with no other format as sure."""
        paths = [self.a_file(tmp_path).path, *(sample.path for sample in self.samples())]
        for path in paths:
            assert _confidence(self.format, path) is Confidence.SURE, str(path)
            assert choose_reader(path, None, registry()).format.name == self.format_name

    def test_files_of_other_shipped_formats_are_not_claimed(self, tmp_path: Path) -> None:
        for other in _shipped():
            if other.name == self.format_name or not other.capabilities.writes:
                continue
            dtype = (
                DType.F32 if DType.F32 in other.capabilities.dtypes else next(iter(other.capabilities.dtypes))
            )
            model = tiny_gpt2(dtype)
            arrays = {name: model.read(name) for name in model.specs}
            path = tmp_path / other.name
            ckptio.save(arrays, path, checkpoint_format=other.name, metadata=model.metadata)
            assert _confidence(self.format, path) is not Confidence.SURE, other.name

    def test_files_that_are_no_checkpoint_are_not_claimed(self, tmp_path: Path) -> None:
        contents = {
            "empty": b"",
            "text": b"one\n" * 20,
            "json": b'{"weight": [1.0, 2.0]}\n',
            "zeros": bytes(2000),
            "ones": b"\xff" * 2000,
        }
        for name, content in contents.items():
            (tmp_path / name).write_bytes(content)
        with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
            archive.writestr("readme.txt", "no checkpoint")
        (tmp_path / "directory").mkdir()
        (tmp_path / "directory" / "readme.txt").write_text("no checkpoint")
        for path in sorted(tmp_path.iterdir()):
            assert _confidence(self.format, path) is not Confidence.SURE, path.name


def _confidence(chosen: Format, path: Path) -> Confidence:
    probe = Probe(path)
    try:
        return match_format(chosen, probe).confidence
    finally:
        probe.close()


def _shipped() -> Iterator[Format]:
    for info in ckptio.formats():
        if info.distribution == "ckptio" and info.problem is None:
            with contextlib.suppress(
                PluginError
            ):  # what is wrong with another format is not this one's fault
                found = registry().load(info.name)
                if missing_dependency(found) is None:
                    yield found
