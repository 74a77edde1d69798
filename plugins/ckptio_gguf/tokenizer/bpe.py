"""Byte-level BPE: ``tokenizer.json`` of GPT-2, LLaMA 3 and Qwen2, or ``vocab.json`` and ``merges.txt``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptio import Problem
from ckptio_gguf.tokenizer.folder import Folder
from ckptio_gguf.tokenizer.pretokenizers import PreTokenizer, find_pre, known_pre, splits_of
from ckptio_gguf.tokenizer.tokens import Found, Token, added_tokens, short, strip_problems

__all__ = ["is_byte_level", "merges_of", "read_byte_level", "read_classic", "vocabulary_of"]

_JSON = "tokenizer.json"
_CLASSES = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}
"""The tokenizers of transformers that are made of ``vocab.json`` and ``merges.txt``."""
_MODEL_TYPES = {"gpt2": "gpt-2", "qwen2": "qwen2"}


def is_byte_level(document: Mapping[str, Any]) -> bool:
    """Return whether ``tokenizer.json`` is a BPE over bytes, as GPT-2 has it."""
    return _model(document).get("type") in ("BPE", None) and any(
        part.get("type") == "ByteLevel" for part in _pre_tokenizers(document)
    )


def _pre_tokenizers(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the pre-tokenizer, or the several of a sequence."""
    whole = document.get("pre_tokenizer")
    parts = whole.get("pretokenizers") if isinstance(whole, Mapping) else None
    return [part for part in (parts if isinstance(parts, list) else [whole]) if isinstance(part, Mapping)]


def read_byte_level(folder: Folder, document: Mapping[str, Any], asked: str | None) -> Found:
    """Return the tokenizer of ``tokenizer.json``; ``asked`` is llama.cpp's name of the pre-tokenizer."""
    model = _model(document)
    vocabulary = vocabulary_of(folder, _JSON, model.get("vocab"))
    merges = merges_of(folder, _JSON, model.get("merges"), vocabulary)
    found = _byte_level(folder, document, vocabulary, merges)
    ignore_merges = model.get("ignore_merges") is True
    pre = asked or find_pre(splits_of(document.get("pre_tokenizer")), ignore_merges)
    if pre is None:
        what = (
            "splits text in a way that is not known here; pass llama.cpp's name of it, -o tokenizer_pre=NAME"
        )
        found.problems.append(Problem("tokenizer", what, allow="tokenizer"))
    else:
        found.pre = pre
        # Who names it says what it stands for, the normalisation among it.
        found.problems += _text_problems(document, None if asked else known_pre(pre))
    return found


def _text_problems(document: Mapping[str, Any], known: PreTokenizer | None) -> Iterator[Problem]:
    """Yield what the tokenizer does with text, and llama.cpp does not."""
    normalizer = document.get("normalizer")
    if normalizer is not None and known is not None and not (known.nfc and normalizer == {"type": "NFC"}):
        what = f"normalises text, and llama.cpp does not: {short(normalizer)}"
        yield Problem("tokenizer", what, allow="tokenization")
    for part in _pre_tokenizers(document):
        if part.get("type") == "ByteLevel" and part.get("add_prefix_space", True):
            what = "puts a space before a text (add_prefix_space), and llama.cpp does not"
            yield Problem("tokenizer", what, allow="tokenization")
    model = _model(document)
    for key in ("byte_fallback", "continuing_subword_prefix", "dropout", "end_of_word_suffix"):
        if model.get(key):
            what = f"has the {key} {short(model[key])}, and llama.cpp does not"
            yield Problem("tokenizer", what, allow="tokenization")


def read_classic(folder: Folder, asked: str | None) -> Found:
    """Return the tokenizer of ``vocab.json`` and ``merges.txt``: GPT-2's, unless a class says another."""
    vocabulary = vocabulary_of(folder, "vocab.json", folder.json("vocab.json"))
    # The first line says the version, and the last is empty.
    lines = [line.rstrip("\r") for line in (folder.text("merges.txt") or "").split("\n")]
    lines = [line for number, line in enumerate(lines) if line.strip() and (number or line[0] != "#")]
    merges = merges_of(folder, "merges.txt", lines, vocabulary)
    found = _byte_level(folder, {}, vocabulary, merges)
    named = (folder.json("tokenizer_config.json") or {}).get("tokenizer_class")
    model_type = (folder.json("config.json") or {}).get("model_type")
    if isinstance(named, str):
        pre = _CLASSES.get(named.removesuffix("Fast"))
    else:
        pre = _MODEL_TYPES.get(model_type) if isinstance(model_type, str) else "gpt-2"
    if asked or pre:
        found.pre = asked or pre or ""
    else:
        what = f"is of {short(named or model_type)}, which is not known here; pass -o tokenizer_pre=NAME"
        found.problems.append(Problem("tokenizer", what, allow="tokenizer"))
    return found


def _byte_level(
    folder: Folder, document: Mapping[str, Any], vocabulary: Mapping[str, int], merges: list[str]
) -> Found:
    added = added_tokens(folder, document)
    tokens = {number: Token(text) for text, number in vocabulary.items()}
    for number, each in added.items():
        own, other = tokens.get(number), vocabulary.get(each.text, number)
        if (own is not None and own.text != each.text) or other != number:
            what = (
                f"the added token {short(each.text)} has the id {number}, and the vocabulary says otherwise"
            )
            raise folder.error(_JSON, what)
        tokens[number] = each.token
    return Found("gpt2", "", tokens, merges, problems=list(strip_problems(added)))


def vocabulary_of(folder: Folder, name: str, vocab: Any) -> dict[str, int]:
    """Return a vocabulary, by text; every token has an id of its own and a text."""
    if not isinstance(vocab, dict) or not vocab:
        raise folder.error(name, "has no vocabulary: an object of texts and ids")
    texts: dict[int, str] = {}
    for text, number in vocab.items():
        if type(number) is not int or number < 0 or not text:
            raise folder.error(name, f"a token has no id or no text: {short(text)}: {short(number)}")
        if texts.setdefault(number, text) != text:
            what = f"two tokens have the id {number}: {short(texts[number])} and {short(text)}"
            raise folder.error(name, what)
    return vocab


def merges_of(folder: Folder, name: str, merges: Any, vocabulary: Mapping[str, int]) -> list[str]:
    """Return the merges as texts with a space between the two tokens; all of them are tokens."""
    if not isinstance(merges, list):
        raise folder.error(name, "has no list of merges")
    found = []
    for number, merge in enumerate(merges):
        pair: Sequence[Any] = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise folder.error(name, f"merge {number} is no pair of tokens: {short(merge)}")
        first, second = pair
        if not (first in vocabulary and second in vocabulary and first + second in vocabulary):
            raise folder.error(name, f"merge {number} is not of tokens to a token: {short(merge)}")
        # As llama.cpp's converter has it: a space inside a token is written as bytes are.
        found.append(f"{first} {second}" if " " not in first + second else " ".join(map(_spaced, pair)))
    return found


def _spaced(part: str) -> str:
    return part.replace(" ", "Ġ")


def _model(document: Mapping[str, Any]) -> Mapping[str, Any]:
    model = document.get("model")
    return model if isinstance(model, Mapping) else {}
