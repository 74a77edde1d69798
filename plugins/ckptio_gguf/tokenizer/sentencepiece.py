"""BPE with scores: ``tokenizer.model`` of sentencepiece, or transformers' ``tokenizer.json`` of the same.

Source of the fields: ``sentencepiece_model.proto`` of sentencepiece (``ModelProto``, ``TrainerSpec``,
``NormalizerSpec``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ckptio import Problem, UnsupportedError, current_limits
from ckptio_gguf.tokenizer.bpe import vocabulary_of
from ckptio_gguf.tokenizer.folder import Folder
from ckptio_gguf.tokenizer.protobuf import Field, fields
from ckptio_gguf.tokenizer.tokens import Found, Token, TokenType, added_tokens, short, splits, strip_problems

__all__ = ["is_byte_fallback", "read_byte_fallback", "read_sentencepiece"]

_MODEL = "tokenizer.model"
_JSON = "tokenizer.json"
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_KIND, _BPE, _UNIGRAM = 3, 2, 1
_IDS = {40: "unk", 41: "bos", 42: "eos", 43: "pad"}
_DEFAULT_IDS = {"unk": 0, "bos": 1, "eos": 2}
_CHARSMAP, _DUMMY_PREFIX, _REMOVE_SPACES, _ESCAPE = 2, 3, 4, 5
_BYTES = 256
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def read_sentencepiece(folder: Folder, document: Mapping[str, Any]) -> Found:
    """Return the tokenizer of ``tokenizer.model``; the added tokens of ``document`` and others go over it."""
    data = folder.data(_MODEL) or b""
    tokens: dict[int, Token] = {}
    specs: dict[int, dict[int, Field]] = {_TRAINER: {}, _NORMALIZER: {}}
    limit = current_limits().tensors
    try:
        for number, value in fields(data):
            if number == _PIECES:
                tokens[len(tokens)] = _piece(value)
                if len(tokens) > limit:
                    raise ValueError(f"there are more than {limit} pieces in it")
            elif number in specs:
                specs[number] |= dict(fields(value))
        if not tokens:
            raise ValueError("there are no pieces in it")
    except ValueError as error:
        raise folder.error(_MODEL, f"is no model of sentencepiece: {error}") from None
    trainer, normalizer = specs[_TRAINER], specs[_NORMALIZER]
    kind = trainer.get(_KIND, _UNIGRAM)
    if kind != _BPE:
        what = "is a unigram model" if kind == _UNIGRAM else f"is of the kind {kind!r}"
        raise UnsupportedError(f"{folder.path / _MODEL}: {what}; llama.cpp takes BPE of sentencepiece only")
    ids = {name: _number(trainer, key, _DEFAULT_IDS.get(name, -1)) for key, name in _IDS.items()}
    # A negative number, of no token, comes as a huge one.
    ids = {name: number for name, number in ids.items() if 0 <= number < len(tokens)}
    found = Found("llama", "default", tokens, ids=ids)
    stated = (folder.json("tokenizer_config.json") or {}).get("add_prefix_space")
    if isinstance(stated, bool):
        found.space_prefix = stated
    elif not normalizer.get(_DUMMY_PREFIX, 1):
        found.space_prefix = False
    found.problems += _normalizer_problems(normalizer)
    if found.space_prefix is not False and any(
        each.type is TokenType.USER_DEFINED for each in tokens.values()
    ):
        what = "has pieces of its user behind which llama.cpp puts a space, and sentencepiece does not"
        found.problems.append(Problem("tokenizer", what, allow="tokenization"))
    _add(folder, document, found)
    return found


def _piece(value: Field) -> Token:
    parts = dict(fields(value))
    text, score, kind = parts.get(_TEXT, b""), parts.get(_SCORE, bytes(4)), parts.get(_TYPE, 1)
    if isinstance(text, int) or isinstance(score, int) or isinstance(kind, bytes) or len(score) != 4:
        raise ValueError("a piece is not a text, a score and a type")
    number = float(np.frombuffer(score, "<f4")[0])
    if not text or not np.isfinite(number):
        raise ValueError("a piece has no text or no score")
    return Token(text.decode(), TokenType(kind), number)


def _number(spec: Mapping[int, Field], key: int, default: int) -> int:
    value = spec.get(key, default)
    if not isinstance(value, int):
        raise UnsupportedError("a number of tokenizer.model is no number")
    return value


def _normalizer_problems(normalizer: Mapping[int, Field]) -> Iterator[Problem]:
    if normalizer.get(_CHARSMAP):
        yield Problem("tokenizer", "normalises text, and llama.cpp does not", allow="tokenization")
    if normalizer.get(_REMOVE_SPACES, 1):
        yield Problem("tokenizer", "removes extra spaces, and llama.cpp does not", allow="tokenization")
    if not normalizer.get(_ESCAPE, 1):
        yield Problem("tokenizer", "leaves spaces as they are, and llama.cpp does not", allow="tokenization")


def is_byte_fallback(document: Mapping[str, Any]) -> bool:
    """Return whether ``tokenizer.json`` is a BPE over characters, with bytes for the unknown ones."""
    model = document.get("model")
    return isinstance(model, Mapping) and model.get("type") == "BPE" and model.get("byte_fallback") is True


def read_byte_fallback(folder: Folder, document: Mapping[str, Any]) -> Found:
    """Return the tokenizer of ``tokenizer.json``. The scores are the ranks of the merges."""
    model = document["model"]
    vocabulary = vocabulary_of(folder, _JSON, model.get("vocab"))
    ranks, same = _ranks(folder, model.get("merges"), vocabulary)
    tokens = {
        number: Token(text, TokenType.BYTE, 0.0)
        if _BYTE.fullmatch(text)
        else Token(text, score=-ranks.get(text, 0.0))
        for text, number in vocabulary.items()
    }
    found = Found("llama", "default", tokens)
    named = model.get("unk_token")
    unknown = vocabulary.get(named) if isinstance(named, str) else None
    if unknown is not None:
        found.ids["unk"] = unknown
        tokens[unknown] = Token(tokens[unknown].text, TokenType.UNKNOWN)
    if not same:
        what = "has merges that no scores can say, and llama.cpp merges by score"
        found.problems.append(Problem("tokenizer", what, allow="tokenization"))
    _take_prefix(document, found)
    _add(folder, document, found)
    return found


def _take_prefix(document: Mapping[str, Any], found: Found) -> None:
    """Find whether a space is put before a text: by a normaliser, or by the pre-tokenizer Metaspace."""
    steps: list[Any] = []
    for key, several in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        whole = document.get(key)
        parts = whole.get(several) if isinstance(whole, Mapping) else None
        steps += parts if isinstance(parts, list) else [whole]
    steps = [step for step in steps if isinstance(step, Mapping)]
    if any(step.get("prepend_scheme", "never") != "never" for step in steps):
        what = "puts no space before a text that has one (Metaspace), and llama.cpp does"
        found.problems.append(Problem("tokenizer", what, allow="tokenization"))
    elif all(step.get("type") != "Prepend" for step in steps):
        found.space_prefix = False


def _ranks(folder: Folder, merges: Any, vocabulary: Mapping[str, int]) -> tuple[dict[str, float], bool]:
    """Return the rank of each merged token, and whether merging by these ranks is the same.

    It is where all ways to make a token of two others are merges, one after the other.
    """
    if not isinstance(merges, list):
        raise folder.error(_JSON, "has no list of merges")
    ranks: dict[str, float] = {}
    last, count, same = "", 0, True
    for number, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise folder.error(_JSON, f"merge {number} is no pair of tokens: {short(merge)}")
        made = pair[0] + pair[1]
        same = same and (made == last or made not in ranks)
        ranks.setdefault(made, float(number))
        last, count = made, count + 1
    texts = [text for text in vocabulary if not _BYTE.fullmatch(text)]
    try:
        ways = sum(1 for _ in splits(texts, vocabulary))
    except ValueError as error:
        raise folder.error(_JSON, str(error)) from None
    return ranks, same and ways == count


def _add(folder: Folder, document: Mapping[str, Any], found: Found) -> None:
    """Put the added tokens over those of the model, which has one for each byte."""
    if sum(token.type is TokenType.BYTE for token in found.tokens.values()) < _BYTES:
        what = "has no tokens for bytes, and llama.cpp ends at a character that is no token"
        found.problems.append(Problem("tokenizer", what, allow="tokenization"))
    added = added_tokens(folder, document)
    for number, each in added.items():
        found.tokens[number] = each.token
    found.problems += strip_problems(added)
