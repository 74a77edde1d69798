r"""How text is split before the merges of a byte-level BPE, by the names that llama.cpp has for it.

A pre-tokenizer is here the regular expressions by which text is split, one after the other, every match a
piece. Source of the names and of what they stand for: ``llama-vocab.cpp`` of llama.cpp (``ignore_merges``
among it); of the normalisation: the ``tokenizer.json`` of GPT-2, LLaMA 3, Qwen2, Qwen3.5, SmolLM, Mistral
NeMo and GPT-4o. llama.cpp normalises nothing: a text for Qwen2 that is not NFC gives other tokens there.
Its ``tekken`` and ``gpt-4o`` part some letters from their combining marks, where the tokenizers do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PreTokenizer", "find_pre", "known_pre", "pre_tokenizer_json", "splits_of"]

_DIGIT = r"\p{N}"
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_ENDINGS}|{_LETTERS}|\p{{N}}|{_REST}"
_QWEN35 = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
_SLASHES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_TEKKEN = rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASHES}"
_GPT4O = (
    rf"{_START}{_UPPER}*{_LOWER}+{_ENDINGS}?|{_START}{_UPPER}+{_LOWER}*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}|{_SLASHES}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """What one of llama.cpp's names stands for.

    ``nfc`` says that the tokenizers of this name normalise, ``ignore_merges`` that a piece which is a token
    is not merged, ``adds_bos`` that llama.cpp puts the first token before a text unless told otherwise.
    """

    splits: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


_KNOWN = {
    "gpt-2": PreTokenizer((_WORDS,)),
    "llama-bpe": PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "qwen2": PreTokenizer((_QWEN2,), nfc=True),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "smollm": PreTokenizer((_DIGIT, _WORDS)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "gpt-4o": PreTokenizer((_GPT4O,)),
}
_SAME = {
    "gpt-2": (
        *("a.x-4.0", "exaone4", "gigachat", "granite-docling", "jais"),
        *("mellum", "mpt", "olmo", "phi-2", "trillion"),
    ),
    "llama-bpe": ("falcon-h1", "falcon3", "lfm2", "llama-v3", "llama3", "midm-2.0", "pixtral"),
    "smaug-bpe": ("chatglm-bpe", "dbrx"),
    "qwen2": (
        "deepseek-r1-qwen",
        "f2llmv2",
        "grok-2",
        "hunyuan",
        "kormo",
        "megrez",
        "solar-open",
        "stablelm2",
    ),
    "smollm": ("codeshell", "command-r", "exaone", "minerva-7b", "refact", "starcoder"),
    "gpt-4o": ("kanana2", "llama4", "minimax-m2", "talkie"),
}
"""Further names for which llama.cpp does the same; what their tokenizers normalise is not known here."""
_BY_NAME = _KNOWN | {
    same: PreTokenizer(_KNOWN[name].splits, False, _KNOWN[name].ignore_merges, _KNOWN[name].adds_bos)
    for name, names in _SAME.items()
    for same in names
}


def known_pre(name: Any) -> PreTokenizer | None:
    """Return what a name of llama.cpp's stands for, and None where that is not known."""
    return _BY_NAME.get(name) if isinstance(name, str) else None


def find_pre(splits: tuple[str, ...] | None, ignore_merges: bool) -> str | None:
    """Return llama.cpp's name for a way to split, and None where it has none that is known."""
    for name, each in _KNOWN.items():
        if (each.splits, each.ignore_merges) == (splits, ignore_merges):
            return name
    return None


def splits_of(pre_tokenizer: Any) -> tuple[str, ...] | None:
    """Return the regular expressions of a pre-tokenizer of ``tokenizer.json``; None when it does more."""
    parts = [pre_tokenizer]
    if isinstance(pre_tokenizer, Mapping) and pre_tokenizer.get("type") == "Sequence":
        parts = pre_tokenizer.get("pretokenizers") or []
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        return None
    if not parts or parts[-1].get("type") != "ByteLevel":
        return None
    found = [_split(part) for part in parts[:-1]]
    if parts[-1].get("use_regex", True):
        found.append(_WORDS)
    splits = tuple(each for each in found if each is not None)
    return splits if len(splits) == len(found) else None


def _split(part: Mapping[str, Any]) -> str | None:
    if part.get("type") == "Digits" and part.get("individual_digits"):
        return _DIGIT
    pattern = part.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, Mapping) else None
    if part.get("type") != "Split" or not isinstance(regex, str):
        return None
    how = (part.get("behavior"), part.get("invert", False))
    # To remove what lies between the matches is the same where the matches cover all of a text.
    same = how == ("Isolated", False) or (how == ("Removed", True) and regex != _DIGIT)
    return regex if same else None


def pre_tokenizer_json(splits: tuple[str, ...]) -> dict[str, Any]:
    """Return the pre-tokenizer of ``tokenizer.json`` that splits so."""
    parts: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in splits
    ]
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*parts, last]}
