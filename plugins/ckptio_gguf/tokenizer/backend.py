"""What ``tokenizer.json`` says of a BPE: the format of the library tokenizers 0.23."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckptio_gguf.tokenizer.pretokenizers import PreTokenizer, pre_tokenizer_json
from ckptio_gguf.tokenizer.tokens import TokenType, short, splits

__all__ = ["Entry", "byte_level_json", "scored_json"]

_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)
_ADDED = (*_SPECIAL, TokenType.USER_DEFINED)
_SPACE = "▁"
_BYTES = 256


@dataclass(frozen=True, slots=True)
class Entry:
    """A token as a file has it; the id is its place."""

    text: str
    type: int
    score: float


def byte_level_json(
    entries: Sequence[Entry], merges: Sequence[tuple[str, str]], pre: PreTokenizer
) -> dict[str, Any]:
    """Return the content of ``tokenizer.json`` for a BPE over bytes, but for its post-processor."""
    found = _skeleton(entries, _inside(entries), merges, None)
    found["normalizer"] = {"type": "NFC"} if pre.nfc else None
    found["pre_tokenizer"] = pre_tokenizer_json(pre.splits)
    found["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    found["decoder"]["use_regex"] = False
    found["model"]["ignore_merges"] = pre.ignore_merges
    return found


def scored_json(entries: Sequence[Entry], unknown: str | None, *, prefix: bool) -> dict[str, Any]:
    """Return the same for tokens with scores: the merges are all ways to make a token of two, best first."""
    numbers = {entry.text: number for number, entry in enumerate(entries) if entry.type == TokenType.NORMAL}
    ranked = [(-entries[numbers[text]].score, numbers[text], at) for text, at in splits(numbers, numbers)]
    merges = [(entries[number].text[:at], entries[number].text[at:]) for _, number, at in sorted(ranked)]
    inside = {entry.text: number for number, entry in enumerate(entries) if entry.type != TokenType.UNUSED}
    found = _skeleton(entries, inside, merges, unknown)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    steps = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    found["normalizer"] = {"type": "Sequence", "normalizers": [*steps, replace]}
    found["pre_tokenizer"] = None
    back = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    found["decoder"] = {"type": "Sequence", "decoders": decoders}
    count = sum(entry.type == TokenType.BYTE for entry in entries)
    found["model"] |= {"byte_fallback": count == _BYTES, "fuse_unk": True, "ignore_merges": False}
    return found


def _inside(entries: Sequence[Entry]) -> dict[str, int]:
    """Return the tokens of the model itself, by text.

    Added tokens are beside them where their ids follow on the others, for so the library numbers them.
    """
    used = [number for number, entry in enumerate(entries) if entry.type != TokenType.UNUSED]
    plain = [number for number in used if entries[number].type not in _ADDED]
    follow = used == list(range(len(used))) and plain == list(range(len(plain)))
    return {entries[number].text: number for number in (plain if follow else used)}


def _skeleton(
    entries: Sequence[Entry],
    inside: dict[str, int],
    merges: Sequence[tuple[str, str]],
    unknown: str | None,
) -> dict[str, Any]:
    for first, second in merges:
        if not (first in inside and second in inside and first + second in inside):
            raise ValueError(f"a merge is not of tokens to a token: {short((first, second))}")
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": entry.text, **plain, "special": entry.type in _SPECIAL}
            for number, entry in enumerate(entries)
            if entry.type in _ADDED
        ],
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": inside,
            "merges": list(merges),
        },
    }
