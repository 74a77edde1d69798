"""Opening a model file: the header, its sizes confirmed by the file's, and a span for each tensor.

The shared head: a GPT-2 file stores the embedding ``transformer.wte.weight`` once, and every program that
reads it uses that matrix as the output head too. So ``lm_head.weight`` is read as an alias of it, and a
head that differs cannot be written: it would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ckptio import (
    CorruptCheckpointError,
    DType,
    FileCheckpoint,
    Problem,
    SourceFile,
    Span,
    TensorSpec,
    current_limits,
)
from ckptio.files import read_chunks
from ckptio.models import ffn_range
from ckptio_llmc.header import Header, read_header
from ckptio_llmc.stacks import Piece, count_elements, count_tensors, header_sizes, pieces

__all__ = ["LlmcCheckpoint", "ffn_bounds", "read_model"]

_CHUNK_BYTES = 1 << 20
_HEADERLESS = 8


class LlmcCheckpoint(FileCheckpoint):
    """The tensors of one file. The padding and the biases that should be zero are not among them.

    What of these is not zero is in `omissions`, which reads them.
    """

    def __init__(self, file: SourceFile, header: Header, sizes: Mapping[str, int]) -> None:
        specs: dict[str, TensorSpec] = {}
        offsets: dict[str, int] = {}
        self._zeros: list[Piece] = []
        for piece in pieces(header, sizes):
            if piece.zeros is None:
                specs[piece.name] = TensorSpec(piece.name, header.dtype, piece.shape)
                offsets[piece.name] = piece.offset
            else:
                self._zeros.append(piece)
        aliases = {"lm_head.weight": "transformer.wte.weight"} if header.variant.name == "gpt2" else {}
        super().__init__(file, specs, offsets, aliases=aliases, metadata=header.metadata())
        self._dtype = header.dtype

    def omissions(self) -> Sequence[Problem]:
        """Return the padding rows and the biases that are not zero in every bit."""
        return [problem for piece in self._zeros for problem in self._not_zero(piece)]

    def _not_zero(self, piece: Piece) -> Iterator[Problem]:
        # Padding is counted in rows, biases in elements.
        width = piece.shape[-1] if len(piece.shape) > 1 else 1
        rows: set[int] = set()
        done = 0
        spans = [Span(self.file, piece.offset, piece.nbytes)]
        for chunk in read_chunks(spans, _CHUNK_BYTES, self._dtype.itemsize):
            words = np.frombuffer(chunk, _BITS[self._dtype])
            rows.update(((np.flatnonzero(words) + done) // width).tolist())
            done += len(words)
        if rows:
            kind = _KINDS[piece.zeros]
            what = f"{len(rows)} of {piece.shape[0]} {kind} are not zero, and are left out"
            yield Problem(piece.name, what, piece.zeros)


_BITS = {DType.F32: "<u4", DType.BF16: "<u2"}
_KINDS: dict[str | None, str] = {
    "padding": "padding rows of the vocabulary",
    "biases": "biases of a bias-free model",
}


def read_model(file: SourceFile) -> LlmcCheckpoint:
    """Return the checkpoint in an open file, which it then owns.

    Raises `UnsupportedError` for what is no model, and `CorruptCheckpointError` for a header that cannot
    be meant or that does not account for every byte of the file.
    """
    header = read_header(file)
    sizes = header_sizes(header)
    if header.variant.architecture == "llama3":
        sizes["n_ffn"] = _inner_width(file, header, sizes)
    else:
        expected = _file_bytes(header, sizes)
        _check_size(file, expected, expected, 1)
    tensors = count_tensors(header.variant, sizes["n_layer"])
    # One header of 1 KB stands for all of them, so fewer are let in than where each has a header of its own.
    limit = current_limits().tensors // _HEADERLESS
    if tensors > limit:
        raise CorruptCheckpointError(
            f"{tensors} tensors are more than the limit of {limit}", path=file.path, offset=16
        )
    return LlmcCheckpoint(file, header, sizes)


def ffn_bounds(header: Header) -> tuple[int, int]:
    """Return the smallest and largest width of the MLP that a LLaMA-3 header allows."""
    values = header.values()
    multiplier = values.get("ffn_dim_multiplier")
    if multiplier is None:
        multiplier = header.words[header.variant.fields["ffn_dim_multiplier"].word]
    return ffn_range(values["n_embd"], values["multiple_of"], multiplier, header.variant.whole)


def _inner_width(file: SourceFile, header: Header, sizes: Mapping[str, int]) -> int:
    """Return the width of the MLP, which no header word holds: the file's size has it."""
    low, high = ffn_bounds(header)
    multiple_of = header.values()["multiple_of"]
    start = _file_bytes(header, {**sizes, "n_ffn": 0})
    each = _file_bytes(header, {**sizes, "n_ffn": 1}) - start
    _check_size(file, start + low * each, start + high * each, multiple_of * each)
    return (file.size - start) // each


def _file_bytes(header: Header, sizes: Mapping[str, int]) -> int:
    return header.variant.header_bytes + header.dtype.itemsize * count_elements(header.variant, sizes)


def _check_size(file: SourceFile, smallest: int, largest: int, step: int) -> None:
    """Refuse a file whose size is none of ``smallest``, ``smallest + step``, … ``largest``."""
    size = file.size
    if smallest <= size <= largest and (size - smallest) % step == 0:
        return
    expected = f"{smallest}"
    if largest > smallest:
        expected += f" to {largest} in steps of {step}"
    end = "cut short" if size < largest else f"{size - largest} bytes too long"
    raise CorruptCheckpointError(
        f"the file is {end}: {size} bytes found, {expected} expected by its header",
        path=file.path,
        offset=min(size, largest),
    )
