"""From the header of a GGUF file to a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ckptio
from ckptio import DType, Problem, Span, TensorSpec, UnsupportedError
from ckptio.casts import Caster
from ckptio.checkpoint import CHUNK_BYTES
from ckptio.described import DescribedCheckpoint
from ckptio.files import read_chunks
from ckptio_gguf.blocks import NEEDED, Blocks, has_package
from ckptio_gguf.header import Header, Stored, read_header, with_notes

__all__ = ["GgufCheckpoint", "open_file"]


class GgufCheckpoint(DescribedCheckpoint):
    """The tensors of an open file; a quantised one has no spans, and is decoded when it is read.

    ``dequantize`` is the dtype in which quantised tensors are wanted. None is f32 too, but a GGUF writer
    may carry the blocks instead.
    """

    def __init__(self, file: ckptio.SourceFile, header: Header, dequantize: DType | None) -> None:
        super().__init__(
            {name: _spec(each, dequantize) for name, each in header.tensors.items()},
            metadata=with_notes(header.metadata, header.tensors),
        )
        self.file = file
        self.header = header
        self._dequantize = dequantize

    def spans(self, name: str) -> Sequence[Span] | None:
        return None if self.header.tensors[name].quantized else (self._span(name),)

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        stored = self.header.tensors[name]
        if not stored.quantized:
            return read_chunks((self._span(name),), max_bytes, stored.spec.dtype.itemsize)
        blocks = Blocks(stored.type, self._span(name), max_bytes)
        return blocks if self._dequantize is None else _cast(name, blocks, self._dequantize)

    def _span(self, name: str) -> Span:
        return Span(self.file, self.header.offsets[name], self.header.tensors[name].nbytes)

    def companions(self) -> Mapping[str, bytes]:
        from ckptio_gguf.tokenizer.to_folder import companions_of

        return companions_of(self.metadata, self.file.path)

    def reads(self, path: Path) -> bool:
        return self.file.is_at(path)

    def check_unchanged(self) -> None:
        self.file.check_unchanged()

    def close(self) -> None:
        self.file.close()


def open_file(path: Path, dequantize: DType | None) -> GgufCheckpoint:
    """Open a file; `UnsupportedError` when it has tensors that cannot be decoded, with the remedy."""
    with ckptio.open_source(path) as file:
        header = read_header(file)
        _check_decoding(path, header.tensors)
        return GgufCheckpoint(file, header, dequantize)


def _spec(stored: Stored, dequantize: DType | None) -> TensorSpec:
    return (
        dataclasses.replace(stored.spec, dtype=dequantize) if stored.quantized and dequantize else stored.spec
    )


def _check_decoding(path: Path, tensors: Mapping[str, Stored]) -> None:
    quantized = [each for each in tensors.values() if each.quantized]
    if quantized and not has_package():
        names = sorted({each.type.name for each in quantized})
        raise UnsupportedError(f"{path}: tensors of {', '.join(names)} need the package gguf: {NEEDED}")
    problems = [
        Problem(each.spec.name, f"{each.type.name} has no decoder in the package gguf")
        for each in quantized
        if not each.type.decoded
    ]
    if problems:
        raise UnsupportedError(f"{path}: some tensors cannot be decoded", problems)


def _cast(name: str, blocks: Blocks, dtype: DType) -> Iterator[memoryview]:
    """Yield the decoded elements in another dtype; what one of them is too large for is refused."""
    caster = Caster(DType.F32, dtype)
    for chunk in blocks:
        cast, overflowed = caster.cast(chunk)
        if overflowed:
            raise UnsupportedError(
                f"{name}: has values beyond the largest of {dtype.value}; read it with -O dequantize=f32"
            )
        yield cast
