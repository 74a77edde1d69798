"""The format ``npz``: what it can hold, how it is opened, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import ckptio
from ckptio import Confidence, DType, Match, Option, Problem, TensorSpec
from ckptio.format import capability_problems, parse_flag
from ckptio_npz.header import MAGIC, pack_header

# Readers and writers are imported when they are needed: formats are also loaded to recognise a file.

__all__ = ["NpzFormat"]

_ZIP = b"PK"


class NpzFormat(ckptio.Format):
    """numpy's archives of arrays: any names and dtypes, and nothing beside the tensors."""

    name: ClassVar[str] = "npz"
    summary: ClassVar[str] = "numpy's .npz archives of arrays (and single .npy arrays, read only)"
    suffixes: ClassVar[tuple[str, ...]] = (".npz",)
    magic: ClassVar[tuple[bytes, ...]] = (MAGIC,)
    capabilities: ClassVar[ckptio.Capabilities] = ckptio.Capabilities(dtypes=frozenset(DType), checksum=True)
    read_options: ClassVar[tuple[Option, ...]] = (
        Option("void", DType.parse, "the dtype of arrays that numpy stored as raw bytes, such as bf16"),
        Option("skip_unknown", parse_flag, "leave out arrays that are no tensors (text, objects, …)", False),
    )

    def open(self, path: Path, options: Mapping[str, Any]) -> ckptio.Checkpoint:
        """Read the headers of all arrays; the one array of an ``.npy`` file is named after the file."""
        from ckptio_npz.reading import read_archive, read_array

        with ckptio.open_source(path) as file:
            if file.read_at(0, min(file.size, len(MAGIC))) == MAGIC:
                return read_array(file, path.stem, options)
            return read_archive(file, options)

    def write(self, checkpoint: ckptio.Checkpoint, out: ckptio.Output, options: Mapping[str, Any]) -> None:
        """Write one stored entry per tensor, and one that notes the dtypes that numpy cannot name."""
        from ckptio.archive import ZipWriter
        from ckptio_npz.dtypes import NOTE, noted_dtypes, pack_note

        archive = ZipWriter(out.create())
        for name, spec in checkpoint.specs.items():
            archive.add_tensor(f"{name}.npy", checkpoint, name, prefix=pack_header(spec))
        noted = noted_dtypes(checkpoint.specs.values())
        if noted:
            note = pack_note(noted)
            header = pack_header(TensorSpec(NOTE, DType.U8, (len(note),)))
            archive.add(f"{NOTE}.npy", header + note)
        archive.finish()

    def check(self, checkpoint: ckptio.Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
        """Compare with the capabilities, and find names that no entry of a zip archive can have."""
        from ckptio.archive import entry_name_problem
        from ckptio_npz.dtypes import NOTE

        problems = capability_problems(self.capabilities, checkpoint.specs.values())
        for name in checkpoint.names():
            problem = entry_name_problem(f"{name}.npy")
            if name == NOTE:
                problem = "the name is that of the array in which the format notes dtypes"
            if problem:
                problems.append(Problem(ascii(name), problem))
        return problems

    def match(self, probe: ckptio.Probe) -> Match:
        neither = Match(Confidence.NO, "not a zip archive, nor an .npy array")
        if not probe.head.startswith(_ZIP):
            return neither
        from ckptio.archive import first_entry

        found = first_entry(probe.head)
        if found is None:
            return neither
        name, data = found
        if name.endswith(".npy") and data.startswith(MAGIC):
            return Match(Confidence.SURE, "a zip archive that begins with an .npy array")
        return Match(Confidence.NO, f"a zip archive that begins with {name[:80]!r}, not with an .npy array")
