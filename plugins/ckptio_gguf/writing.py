"""From a checkpoint to a GGUF file, laid out as the package gguf does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptio import Checkpoint, DType, Problem, TensorSpec
from ckptio.output import OutputFile
from ckptio_gguf.blocks import NEEDED, Blocks, has_package, quantized_chunks, untouched
from ckptio_gguf.config import ARCHITECTURE, recognised, with_model
from ckptio_gguf.file_type import mostly, with_file_type
from ckptio_gguf.header import Stored, pack_header, padding
from ckptio_gguf.notes import DEFAULT_ALIGNMENT, is_alignment, note_of
from ckptio_gguf.tokenizer.from_folder import with_tokenizer
from ckptio_gguf.types import BY_DTYPE, BY_NAME, GgmlType

__all__ = ["quantized_now", "tensor_problems", "write_file"]

_MOST_DIMENSIONS = 4
"""``GGML_MAX_DIMS`` of ggml."""
_KEPT_PLAIN = ("position_embd.weight", "token_types.weight")
"""What llama.cpp's own converter never quantises, beside all that has one dimension."""
_QUANTIZATION = {"general.quantization_version": 2}
"""Wanted of a file with quantised tensors. llama.cpp's converter writes it into every other file too."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor as it is to be stored, and the blocks that it is already, if it is."""

    stored: Stored
    blocks: Blocks | None
    fallback: str | None = None

    @property
    def made(self) -> bool:
        """Whether it is quantised now."""
        return self.stored.quantized and self.blocks is None


def tensor_problems(checkpoint: Checkpoint, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what cannot be stored of tensors whose dtypes can be."""
    for name in checkpoint.names():
        try:
            name.encode()
        except UnicodeEncodeError:
            yield Problem(ascii(name), "the name has a lone surrogate: it is not text")
    quantizes = False
    carried: set[str] = set()
    for spec in checkpoint.specs.values():
        if len(spec.shape) > _MOST_DIMENSIONS:
            what = f"{len(spec.shape)} dimensions are more than the {_MOST_DIMENSIONS} of ggml"
            yield Problem(spec.name, what)
        if spec.dtype not in BY_DTYPE:
            continue
        entry = _entry(checkpoint, spec, options["quantize"])
        if entry.blocks is not None:
            carried.add(entry.stored.type.name.lower())
        if entry.fallback is not None:
            yield Problem(spec.name, f"{entry.fallback}; it stays {spec.dtype.value}", allow="fallback")
        elif entry.made:
            quantizes = True
            if spec.dtype is not DType.F32:
                yield Problem(
                    spec.name, f"{spec.dtype.value} is not quantised: --dtype f32 makes it f32 before"
                )
    asked = options["quantize"]
    if asked is not None and not quantizes and carried - {asked}:
        what = f"what has rows is {', '.join(sorted(carried)).upper()} already: --dtype f32 decodes it before"
        yield Problem("", f"-o quantize={asked}: {what}")
    if quantizes and not has_package():
        yield Problem("", f"quantising needs the package gguf: {NEEDED}")


def quantized_now(checkpoint: Checkpoint, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the type of each tensor that comes to be quantised; `tensor_problems` has nothing against it."""
    entries = (_entry(checkpoint, spec, options["quantize"]) for spec in checkpoint.specs.values())
    return {each.stored.spec.name: each.stored.type.name for each in entries if each.made}


def write_file(checkpoint: Checkpoint, file: OutputFile, options: Mapping[str, Any]) -> None:
    """Write header and tensors in the order of the checkpoint, each padded to the alignment."""
    alignment, say = _alignment(checkpoint.metadata, options["alignment"])
    entries = [_entry(checkpoint, spec, options["quantize"]) for spec in checkpoint.specs.values()]
    metadata = with_tokenizer(with_model(checkpoint), checkpoint, options)
    if any(each.made for each in entries):
        metadata |= _QUANTIZATION
    metadata = _with_file_type(checkpoint, metadata, entries)
    header = pack_header([each.stored for each in entries], metadata, alignment, say)
    file.write(header)
    for each in entries:
        _write_tensor(checkpoint, each, file)
        file.zeros(padding(each.stored.nbytes, alignment))


def _write_tensor(checkpoint: Checkpoint, entry: _Entry, file: OutputFile) -> None:
    name = entry.stored.spec.name
    if entry.blocks is not None:
        file.copy(entry.blocks.span)
    elif entry.made:
        for data in quantized_chunks(checkpoint, name, entry.stored.type):
            file.write(data)
    else:
        checkpoint.copy_to(name, file)


def _entry(checkpoint: Checkpoint, spec: TensorSpec, quantize: str | None) -> _Entry:
    plain = BY_DTYPE[spec.dtype]
    blocks = untouched(checkpoint, spec.name) if spec.dtype is DType.F32 else None
    if blocks is not None:
        return _Entry(Stored(spec, blocks.type), blocks)
    if quantize is None or not _is_quantized(spec):
        return _Entry(Stored(spec, plain), None)
    kind: GgmlType = BY_NAME[quantize.upper()]
    problem = kind.row_problem(spec.shape)
    return _Entry(Stored(spec, plain if problem else kind), None, problem)


def _is_quantized(spec: TensorSpec) -> bool:
    return spec.dtype.is_float and len(spec.shape) > 1 and spec.name not in _KEPT_PLAIN


def _with_file_type(
    checkpoint: Checkpoint, metadata: Mapping[str, Any], entries: Sequence[_Entry]
) -> dict[str, Any]:
    """Return the metadata with a type of the file that is true of its tensors.

    Where there was none, a model that is now made gets one, and what is quantised now; a file that is
    copied does not.
    """
    kind = mostly((each.stored.spec, each.stored.type) for each in entries)
    made = {each.stored.type for each in entries if each.made}
    copied = all(each.blocks or checkpoint.spans(each.stored.spec.name) for each in entries)
    copied = copied and ARCHITECTURE in checkpoint.metadata
    add = bool(made) or not (copied or recognised(checkpoint) is None)
    noted = note_of(checkpoint.metadata).get("mostly")
    return with_file_type(metadata, kind, made=kind in made, noted=noted, add=add)


def _alignment(metadata: Mapping[str, Any], asked: int | None) -> tuple[int, bool]:
    """Return the alignment (that asked for, that of the source, or the default) and whether to say it."""
    noted = note_of(metadata).get("alignment")
    found = asked or (noted if is_alignment(noted) else None)
    return (found, True) if found is not None else (DEFAULT_ALIGNMENT, False)
