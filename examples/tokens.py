"""Training data: llm.c's token files, or the text beside this module, in sequences taken in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ckptio import OptionError

__all__ = ["Batches", "Tokens", "read_text", "read_tokens"]

TEXT = Path(__file__).with_name("alice.txt")

_HEADER_BYTES = 1024
_KINDS = {
    # magic: version, type of a token, vocabulary of the tokenizer
    20240520: (1, "<u2", 50257),
    20240801: (7, "<u4", 128256),
}


@dataclass(frozen=True)
class Tokens:
    """A stream of tokens, and the vocabulary of the tokenizer that made them."""

    values: npt.NDArray[np.integer]
    vocab_size: int
    name: str


def read_tokens(path: Path) -> Tokens:
    """Map one of llm.c's token files: GPT-2's (uint16 tokens) or LLaMA-3's (uint32).

    An int32 header of 1024 bytes (magic, version, number of tokens), then the tokens, as llm.c's
    ``dev/data/data_common.py`` writes them. Raises `OptionError` for any other file.
    """
    header = np.fromfile(path, "<i4", _HEADER_BYTES // 4)
    if len(header) < 3 or int(header[0]) not in _KINDS:
        raise OptionError(f"--input_bin {path}: not a token file of llm.c")
    version, dtype, vocab_size = _KINDS[int(header[0])]
    if header[1] != version:
        raise OptionError(f"--input_bin {path}: version {header[1]} found, {version} expected")
    count, size = int(header[2]), path.stat().st_size
    expected = _HEADER_BYTES + count * np.dtype(dtype).itemsize
    if count < 2 or size != expected:
        raise OptionError(
            f"--input_bin {path}: {size} bytes, but the header says {count} tokens ({expected} bytes)"
        )
    values = np.memmap(path, dtype, "r", _HEADER_BYTES, (count,))
    return Tokens(values, vocab_size, str(path))


def read_text() -> Tokens:
    """Return the bytes of the text as tokens."""
    return Tokens(np.frombuffer(TEXT.read_bytes(), np.uint8), 256, TEXT.name)


class Batches:
    """Inputs and targets for a model: whole sequences, one after the other, and from the start again.

    Sequence ``i`` is tokens ``i*T`` to ``(i+1)*T``, its targets are the same shifted by one; a tail that
    makes no whole sequence is dropped. So a position is a number of sequences, whatever the batch size.
    """

    def __init__(self, tokens: Tokens, sequence_length: int) -> None:
        self._tokens = tokens
        self.length = sequence_length
        self._sequences = (len(tokens.values) - 1) // sequence_length
        if not self._sequences:
            raise OptionError(
                f"{tokens.name}: {len(tokens.values)} tokens do not make a sequence of {sequence_length}"
            )

    def take(self, position: int, count: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets, int64 of shape ``(count, T)``, from sequence ``position`` on.

        Raises `OptionError` for a token that a model of this vocabulary does not have.
        """
        starts = (np.arange(position, position + count) % self._sequences) * self.length
        rows = self._tokens.values[starts[:, None] + np.arange(self.length + 1)].astype(np.int64)
        if rows.max() >= vocab_size:
            raise OptionError(
                f"{self._tokens.name}: has token {rows.max()}, but the model knows {vocab_size} tokens only"
            )
        block = torch.from_numpy(rows)
        return block[:, :-1].contiguous(), block[:, 1:].contiguous()
