"""The format ``gguf``: what it can hold, and how it is opened and written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import ckptio
from ckptio import DType, Option, Problem
from ckptio.format import capability_problems

# Readers and writers are imported when they are needed: formats are also loaded to recognise a file.

__all__ = ["GgufFormat"]


def _parse_alignment(text: str) -> int:
    from ckptio_gguf.notes import is_alignment

    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not is_alignment(value):
        raise ValueError("it is a power of two from 8 to 65536")
    return value


def _parse_tokenizer(text: str) -> Any:
    from ckptio_gguf.tokenizer.from_folder import parse_folder

    return parse_folder(text)


def _parse_pre(text: str) -> str:
    from ckptio_gguf.tokenizer.from_folder import parse_pre

    return parse_pre(text)


class GgufFormat(ckptio.Format):
    """GGUF: any names, the plain types of ggml and, decoded, its quantised ones, and metadata."""

    name: ClassVar[str] = "gguf"
    summary: ClassVar[str] = "GGUF, the models of llama.cpp, quantised ones too"
    suffixes: ClassVar[tuple[str, ...]] = (".gguf",)
    magic: ClassVar[tuple[bytes, ...]] = (b"GGUF",)
    # No empty tensors: ggml divides by the dimensions.
    capabilities: ClassVar[ckptio.Capabilities] = ckptio.Capabilities(
        dtypes=frozenset(
            (DType.F16, DType.BF16, DType.F32, DType.F64, DType.I8, DType.I16, DType.I32, DType.I64)
        ),
        runs_layout="gguf",
        metadata=True,
        empty=False,
    )
    read_options: ClassVar[tuple[Option, ...]] = (
        Option(
            "dequantize",
            str.lower,
            "the dtype of quantised tensors; without it f32, and gguf to gguf carries them as they are",
            choices=("f32", "f16", "bf16"),
        ),
    )
    write_options: ClassVar[tuple[Option, ...]] = (
        Option(
            "quantize",
            str.lower,
            "quantise the f32 tensors that have rows, as q8_0 for example",
            choices=("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4"),
        ),
        Option("alignment", _parse_alignment, "where tensors begin: at multiples of so many bytes (32)"),
        Option(
            "tokenizer",
            _parse_tokenizer,
            "the folder whose tokenizer goes into the file; none: that of no folder",
        ),
        Option("tokenizer_pre", _parse_pre, "llama.cpp's name of its pre-tokenizer, where none is found"),
    )

    def open(self, path: Path, options: Mapping[str, Any]) -> ckptio.Checkpoint:
        """Read the header, or those of all files of a set; all is checked, to the last byte of each."""
        from ckptio_gguf.splits import open_checkpoint

        asked = options["dequantize"]
        return open_checkpoint(path, DType.parse(asked) if asked else None)

    def write(self, checkpoint: ckptio.Checkpoint, out: ckptio.Output, options: Mapping[str, Any]) -> None:
        """Write as the package gguf does it, to the byte, in the order of the checkpoint."""
        from ckptio_gguf.writing import write_file

        write_file(checkpoint, out.create(), options)

    def match(self, probe: ckptio.Probe) -> ckptio.Match:
        """Recognise a directory that holds one model; files have a magic."""
        if probe.listing is None:
            return super().match(probe)
        from ckptio_gguf.split_names import match_directory

        return match_directory(probe.listing)

    def alters(self, checkpoint: ckptio.Checkpoint, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Those that are quantised."""
        from ckptio_gguf.writing import quantized_now

        return quantized_now(checkpoint, options)

    def owns(self, key: str) -> bool:
        """Its own note, what a writer makes true of the tensors and the config, and the tokenizer."""
        from ckptio_gguf.config import is_hyperparameter
        from ckptio_gguf.file_type import FILE_TYPE

        return key in (self.name, FILE_TYPE) or key.startswith("tokenizer.") or is_hyperparameter(key)

    def check(self, checkpoint: ckptio.Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
        """Compare with the capabilities, and find what ggml or its blocks cannot hold, and odd metadata."""
        from ckptio_gguf.config import model_problems
        from ckptio_gguf.notes import metadata_problems
        from ckptio_gguf.tokenizer.from_folder import tokenizer_problems
        from ckptio_gguf.writing import tensor_problems

        problems = capability_problems(self.capabilities, checkpoint.specs.values())
        problems += tensor_problems(checkpoint, options)
        problems += model_problems(checkpoint)
        problems += tokenizer_problems(checkpoint, options)
        return problems + metadata_problems(checkpoint.metadata)
