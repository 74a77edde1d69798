"""Reading a header: refuse what is no model, then believe no word that has not been checked."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckptio import CorruptCheckpointError, Cursor, DType, Problem, SourceFile, UnsupportedError
from ckptio.models import config_problems
from ckptio_llmc.magics import GPT2_MAGIC, LLAMA3_MAGIC, OTHER_FILES
from ckptio_llmc.variants import (
    VERSIONS,
    VOCAB_MULTIPLE,
    Variant,
    variant_of,
)

__all__ = ["Header", "padded_vocab", "read_header"]

_WORDS = struct.Struct("<256i")


@dataclass(frozen=True)
class Header:
    """A checked header: ``words`` has the float header's words after the 256 of the first."""

    variant: Variant
    words: Sequence[int]

    @property
    def dtype(self) -> DType:
        """The one element type of the file."""
        return VERSIONS[self.words[1]]

    def values(self) -> dict[str, Any]:
        """Return what the fields say, without those whose value is lost."""
        found = {key: field.kind.decode(self.words[field.word]) for key, field in self.variant.fields.items()}
        return {key: value for key, value in found.items() if value is not None}

    def config(self) -> dict[str, Any]:
        """Return the hyperparameters, in ckptio's spelling."""
        config = self.values()
        config.pop("padded_vocab_size", None)
        if "major" in config:
            config["version"] = f"{config.pop('major')}.{config.pop('minor')}"
        return config

    def metadata(self) -> dict[str, Any]:
        """Return ``config``, and under ``llmc`` what is needed to write the same header again."""
        raw: dict[str, Any] = {
            "layout": self.variant.name,
            "version": self.words[1],
            "header": _trimmed(self.words[: _WORDS.size // 4]),
        }
        if self.variant.words > _WORDS.size // 4:
            raw["float_header"] = _trimmed(self.words[_WORDS.size // 4 :])
        return {"config": self.config(), "llmc": raw}

    def problems(self) -> list[Problem]:
        """Return what cannot be meant in these words, the sizes of the tensors aside."""
        problems = config_problems(self.config(), {})
        fields = self.variant.fields
        lost = fields["ffn_dim_multiplier"] if self.variant.whole == "lost" else None
        if lost is not None and self.words[lost.word] < 0:
            problems.append(Problem("config.ffn_dim_multiplier", f"{self.words[lost.word]} is negative"))
        if lost is not None and self.words[fields["norm_eps"].word] != 0:
            problems.append(Problem("config.norm_eps", "1 or more, which no epsilon is"))
        values = self.values()
        if "padded_vocab_size" in values and not problems:
            wanted = padded_vocab(values["vocab_size"])
            if values["padded_vocab_size"] != wanted:
                what = (
                    f"{values['padded_vocab_size']} found, {wanted} expected: vocab_size "
                    f"{values['vocab_size']} raised to a multiple of {VOCAB_MULTIPLE}"
                )
                problems.append(Problem("config.padded_vocab_size", what))
        return problems


def padded_vocab(vocab_size: int) -> int:
    """Return the number of rows that llm.c gives GPT-2's embedding."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def read_header(file: SourceFile) -> Header:
    """Return the header of a model file.

    Raises `UnsupportedError` for llm.c's other files and old versions, and `CorruptCheckpointError` for a
    word that cannot be meant.
    """
    cursor = Cursor(file)
    magic = int.from_bytes(cursor.take(4, "the magic"), "little")
    if magic in OTHER_FILES:
        raise UnsupportedError(f"{file.path}: not a model but {OTHER_FILES[magic]}")
    if magic not in (GPT2_MAGIC, LLAMA3_MAGIC):
        raise cursor.error(f"not an llm.c model: magic {magic}, {GPT2_MAGIC} or {LLAMA3_MAGIC} expected", 0)
    cursor.offset = 0
    words = cursor.unpack(_WORDS, "the header")
    if magic == LLAMA3_MAGIC and _is_debug_state(words, file.size):
        raise UnsupportedError(f"{file.path}: not a model but a debug state of LLaMA-3 (magic as a model's)")
    variant = variant_of(words)
    _check_version(variant, words[1], file)
    if variant.words > len(words):
        words += cursor.unpack(_WORDS, "the float header")
    header = Header(variant, words)
    for problem in header.problems():
        key = problem.where.removeprefix("config.")
        word = variant.fields["major" if key == "version" else key].word
        raise cursor.error(f"header word {word} ({key}): {problem.what}", 4 * word)
    return header


def _check_version(variant: Variant, version: int, file: SourceFile) -> None:
    if variant.magic == GPT2_MAGIC and version in (1, 2):
        raise UnsupportedError(
            f"{file.path}: version {version} of llm.c's GPT-2 files, which has no vocabulary padding and "
            "which llm.c itself no longer reads; export the model again with a current train_gpt2.py"
        )
    if VERSIONS.get(version) not in variant.dtypes:
        known = " or ".join(
            f"{each} ({dtype.value})" for each, dtype in VERSIONS.items() if dtype in variant.dtypes
        )
        raise CorruptCheckpointError(
            f"version {version} found, {known} expected for the layout {variant.name!r}",
            path=file.path,
            offset=4,
        )


def _is_debug_state(words: Sequence[int], size: int) -> bool:
    """Tell a debug state, which has batch and sequence where a model has its sizes, and then zeros.

    llm.c master writes them at words 1 and 2, its branch llama3 at 2 and 3 (after a version 3, and before
    the number of losses). Two int32 matrices, logits and a loss follow.
    """
    batch, length = (words[1], words[2]) if words[3] == 0 else (words[2], words[3])
    zeros = all(word == 0 for word in words[5:])
    return zeros and batch > 0 and length > 0 and size > _WORDS.size + 8 * batch * length


def _trimmed(words: Sequence[int]) -> list[int]:
    """Return the words up to the last that is not zero."""
    count = max((index for index, word in enumerate(words) if word), default=-1) + 1
    return list(words[:count])
