"""The format ``llmc`` as ckptio knows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptio import (
    Capabilities,
    Checkpoint,
    Confidence,
    DType,
    Format,
    Match,
    Option,
    Output,
    Probe,
    Problem,
    UnsupportedError,
    open_source,
)
from ckptio.format import capability_problems
from ckptio_llmc.magics import MAGICS
from ckptio_llmc.runs import finished_models, open_newest

__all__ = ["LlmcFormat"]


class LlmcFormat(Format):
    """llm.c's model files. All its magics are declared, so that its other files are refused by name.

    Readers and writers are imported when they are needed: formats are also loaded to recognise a file.
    """

    name = "llmc"
    summary = "llm.c model files: GPT-2, and LLaMA-3 in three layouts"
    suffixes = (".bin",)
    magic = tuple(magic.to_bytes(4, "little") for magic in MAGICS)
    capabilities = Capabilities(
        dtypes=frozenset({DType.F32, DType.BF16}),
        layout="llmc",
        holds="model",
        aliases=True,
        zero_dim=False,
        empty=False,
    )
    write_options = (
        Option(
            "layout",
            str,
            "layout of a LLaMA-3 file (default: the source's, else master); GPT-2 files have one layout",
            choices=("master", "branch", "infinitrain"),
        ),
    )

    def open(self, path: Path, options: Mapping[str, Any]) -> Checkpoint:
        """Open a model file, or that of the newest finished step of a run that is whole."""
        return open_newest(path, _open_model) if path.is_dir() else _open_model(path)

    def match(self, probe: Probe) -> Match:
        models = finished_models(probe.listing or ())
        if models:
            return Match(Confidence.SURE, f"a run of llm.c, whose last finished step has {models[0]}")
        return Match(Confidence.NO, "no magic of llm.c")

    def check(self, checkpoint: Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
        from ckptio_llmc.writer import plan

        problems = capability_problems(self.capabilities, checkpoint.specs.values())
        return problems + plan(checkpoint, options["layout"])[1]

    def write(self, checkpoint: Checkpoint, out: Output, options: Mapping[str, Any]) -> None:
        from ckptio_llmc.writer import plan, write_model

        planned, problems = plan(checkpoint, options["layout"])
        if planned is None:
            raise UnsupportedError(f"{out.final_name}: not a model that llm.c's files can hold", problems)
        write_model(planned, out)


def _open_model(path: Path) -> Checkpoint:
    from ckptio_llmc.reader import read_model

    with open_source(path) as file:
        return read_model(file)
