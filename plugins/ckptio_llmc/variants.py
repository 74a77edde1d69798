"""The four headers of llm.c model files: which word says what.

All are int32 words, little-endian; word 0 is the magic, word 1 the version (3: all f32, 5: all bf16).
Words of ``branch`` from 256 on are float32. Three headers share the magic of LLaMA-3:

- ``master``: llm.c master. ``int()`` was applied to the floats on writing: 1.3 became 1 and 1e-5 became 0,
  so that these two are lost; of rope_theta, a whole number in every published model, nothing is.
- ``branch``: llm.c's branch llama3, with a second header of float32 words.
- ``infinitrain``: as ``master``, but the three floats are float32 bits; f32 tensors only.

Word 11 tells them apart: a minor version (at most 9) in ``branch``, rope_theta as a number in ``master``,
as float32 bits in ``infinitrain``, where any theta from 1.0 on is 0x3F800000 or more.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ckptio import DType
from ckptio_llmc.magics import GPT2_MAGIC, LLAMA3_MAGIC

__all__ = ["VARIANTS", "VERSIONS", "VOCAB_MULTIPLE", "Field", "Kind", "Variant", "variant_of"]

VERSIONS = {3: DType.F32, 5: DType.BF16}
VOCAB_MULTIPLE = 128
"""GPT-2's embedding is padded with zero rows to a multiple of this."""

_SMALLEST_THETA_BITS = 0x3F800000
_LARGEST_MINOR = 9


class Kind(enum.Enum):
    """How a header word holds a hyperparameter."""

    INT = "an integer"
    FLAG = "0 or 1"
    WHOLE = "a float that is a whole number"
    LOST = "a float of which int() left the whole part"
    BITS = "the bits of a float32"

    def decode(self, word: int) -> int | float | bool | None:
        """Return the hyperparameter (None where it is lost); of a float32, its shortest decimal."""
        match self:
            case Kind.LOST:
                return None
            case Kind.FLAG:
                return bool(word) if word in (0, 1) else word
            case Kind.WHOLE:
                return float(word)
            case Kind.BITS:
                (value,) = struct.unpack("<f", struct.pack("<i", word))
                return float(str(np.float32(value)))
        return word

    def encode(self, value: float) -> int:
        """Return the word for a hyperparameter; OverflowError when it does not fit."""
        if self is Kind.BITS:
            (word,) = struct.unpack("<i", struct.pack("<f", value))
            return int(word)
        if not -(2**31) <= int(value) < 2**31:
            raise OverflowError(f"{value} does not fit a header word")
        return int(value)


@dataclass(frozen=True, slots=True)
class Field:
    """One word of a header; ``default`` is what is written when nobody knows better."""

    word: int
    kind: Kind = Kind.INT
    default: int | None = None


@dataclass(frozen=True)
class Variant:
    """One of the four headers. ``whole`` says how its program makes the MLP's width a whole number."""

    name: str
    architecture: str
    magic: int
    fields: Mapping[str, Field]
    words: int = 256
    dtypes: tuple[DType, ...] = (DType.F32, DType.BF16)
    whole: Literal["cut", "rounded", "lost"] = "cut"

    @property
    def header_bytes(self) -> int:
        """Where the tensors begin."""
        return 4 * self.words


_LLAMA3 = ("block_size", "vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd")


def _fields(*keys: str) -> dict[str, Field]:
    return {key: Field(word) for word, key in enumerate(keys, start=2)}


def _master(floats: Kind, norm_eps: Field, theta: Kind) -> dict[str, Field]:
    return {
        **_fields(*_LLAMA3),
        "ffn_dim_multiplier": Field(8, floats),
        "multiple_of": Field(9),
        "norm_eps": norm_eps,
        "rope_theta": Field(11, theta),
        "use_scaled_rope": Field(12, Kind.FLAG),
        "max_gen_batch_size": Field(13, default=4),
        "major": Field(14, default=3),
        "minor": Field(15, default=1),
    }


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(
            "gpt2",
            "gpt2",
            GPT2_MAGIC,
            _fields("block_size", "vocab_size", "n_layer", "n_head", "n_embd", "padded_vocab_size"),
        ),
        Variant(
            "master",
            "llama3",
            LLAMA3_MAGIC,
            # int() of any epsilon is 0, so this word needs no hyperparameter.
            _master(Kind.LOST, Field(10, Kind.LOST, default=0), Kind.WHOLE),
            whole="lost",
        ),
        Variant(
            "branch",
            "llama3",
            LLAMA3_MAGIC,
            {
                **_fields(*_LLAMA3, "multiple_of"),
                "use_scaled_rope": Field(9, Kind.FLAG),
                "major": Field(10, default=3),
                "minor": Field(11, default=1),
                "ffn_dim_multiplier": Field(256, Kind.BITS),
                "norm_eps": Field(257, Kind.BITS),
                "rope_theta": Field(258, Kind.BITS),
            },
            words=512,
        ),
        Variant(
            "infinitrain",
            "llama3",
            LLAMA3_MAGIC,
            _master(Kind.BITS, Field(10, Kind.BITS), Kind.BITS),
            dtypes=(DType.F32,),
            whole="rounded",
        ),
    )
}


def variant_of(words: Sequence[int]) -> Variant:
    """Return which header these words are, told by the magic and word 11."""
    if words[0] == GPT2_MAGIC:
        return VARIANTS["gpt2"]
    if words[11] <= _LARGEST_MINOR:
        return VARIANTS["branch"]
    return VARIANTS["master" if words[11] < _SMALLEST_THETA_BITS else "infinitrain"]
