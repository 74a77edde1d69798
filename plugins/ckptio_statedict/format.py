"""The format ``statedict``: what it can hold, how it is opened, and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import ckptio
from ckptio.format import capability_problems
from ckptio_statedict.records import CODES, LORA_MAGIC, MAGIC, pack_header, pack_record, read_records

__all__ = ["StatedictFormat"]


class StatedictFormat(ckptio.Format):
    """InfiniTrain's StateDict binary: any names, its 13 dtypes, and nothing beside the tensors."""

    name: ClassVar[str] = "statedict"
    summary: ClassVar[str] = "InfiniTrain's native StateDict binary (model.ckpt, optimizer.ckpt)"
    suffixes: ClassVar[tuple[str, ...]] = (".ckpt",)
    magic: ClassVar[tuple[bytes, ...]] = (MAGIC, LORA_MAGIC)
    capabilities: ClassVar[ckptio.Capabilities] = ckptio.Capabilities(dtypes=frozenset(CODES))

    def open(self, path: Path, options: Mapping[str, Any]) -> ckptio.Checkpoint:
        """Read all record headers; the whole structure is checked, to the last byte of the file."""
        with ckptio.open_source(path) as file:
            return ckptio.FileCheckpoint(file, *read_records(file))

    def write(self, checkpoint: ckptio.Checkpoint, out: ckptio.Output, options: Mapping[str, Any]) -> None:
        """Write one record per tensor, in the checkpoint's own order.

        InfiniTrain takes any order. Keeping the given one makes the same checkpoint the same bytes,
        and a copy of a file equal to the file.
        """
        file = out.create()
        file.write(pack_header(len(checkpoint.specs)))
        for name, spec in checkpoint.specs.items():
            file.write(pack_record(spec))
            checkpoint.copy_to(name, file)

    def check(self, checkpoint: ckptio.Checkpoint, options: Mapping[str, Any]) -> list[ckptio.Problem]:
        """Compare with the capabilities, and find names that UTF-8 cannot spell."""
        problems = capability_problems(self.capabilities, checkpoint.specs.values())
        for name in checkpoint.names():
            try:
                name.encode()
            except UnicodeEncodeError:
                problems.append(ckptio.Problem(ascii(name), "the name has a lone surrogate: it is not text"))
        return problems
