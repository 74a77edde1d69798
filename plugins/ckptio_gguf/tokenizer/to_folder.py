"""From the metadata of a file to the tokenizer of a folder: ``tokenizer.json`` and ``tokenizer_config.json``.

They do what llama.cpp does with a text. Where the folder that a file was made of did otherwise (a token that
takes in the spaces beside it), that is not in the file.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ckptio_gguf.tokenizer.backend import Entry, byte_level_json, scored_json
from ckptio_gguf.tokenizer.pretokenizers import known_pre
from ckptio_gguf.tokenizer.special import ID_KEYS
from ckptio_gguf.tokenizer.tokens import TokenType, short

__all__ = ["companions_of"]

_GGML = "tokenizer.ggml."
_NONE = (None, "no_vocab", "none")
_LLAMA_IDS = {"bos": 1, "eos": 2, "unk": 0}
"""What llama.cpp takes for the special tokens of sentencepiece where a file says nothing."""
_NAMED = ("bos", "eos", "unk", "sep", "pad", "mask")
_TEMPLATE = "tokenizer.chat_template"


def companions_of(metadata: Mapping[str, Any], path: Path) -> dict[str, bytes]:
    """Return the files of the tokenizer that the metadata hold, and none where none can be made of them.

    Of tokens of which no tokenizer is made it is said why, in a warning.
    """
    if metadata.get(f"{_GGML}model") in _NONE:
        return {}
    try:
        tokenizer, special = _tokenizer(metadata)
        template = _template(metadata)
    except ValueError as error:
        warnings.warn(f"{path}: no tokenizer.json is made of its tokens: {error}", stacklevel=2)
        return {}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": text for name, text in special.items()},
    }
    architecture = metadata.get("general.architecture")
    longest = metadata.get(f"{architecture}.context_length")
    if type(longest) is int:
        config["model_max_length"] = longest
    if template:
        config["chat_template"] = template
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=False).encode() + b"\n",
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=2).encode() + b"\n",
    }


def _tokenizer(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of ``tokenizer.json``, and the special tokens by name; ValueError says why not."""
    model, entries = metadata[f"{_GGML}model"], _entries(metadata)
    special = {name: entries[number].text for name, number in _ids(metadata, model, len(entries)).items()}
    if model == "gpt2":
        pre = metadata.get(f"{_GGML}pre")
        known = known_pre(pre)
        if known is None:
            raise ValueError(f"how its pre-tokenizer {short(pre)} splits text is not known here")
        merges = _texts(metadata, f"{_GGML}merges")
        tokenizer = byte_level_json(entries, [_pair(merge) for merge in merges], known)
        adds_bos = known.adds_bos
    elif model == "llama":
        prefix = metadata.get(f"{_GGML}add_space_prefix") is not False
        tokenizer, adds_bos = scored_json(entries, special.get("unk"), prefix=prefix), True
    else:
        raise ValueError(f"the kind {short(model)} is not known here")
    first = special.get("bos") if _flag(metadata, "bos", adds_bos) else None
    last = special.get("eos") if _flag(metadata, "eos", False) else None
    tokenizer["post_processor"] = _post_processor(entries, first, last)
    return tokenizer, special


def _entries(metadata: Mapping[str, Any]) -> list[Entry]:
    """Return the tokens with their types and scores; what has no type is a normal token."""
    texts = _texts(metadata, f"{_GGML}tokens")
    types = metadata.get(f"{_GGML}token_type", [TokenType.NORMAL] * len(texts))
    scores = metadata.get(f"{_GGML}scores", [0.0] * len(texts))
    for values, kind in ((types, int), (scores, float)):
        if not isinstance(values, list) or len(values) != len(texts):
            raise ValueError("types or scores are not as many as the tokens")
        if not all(isinstance(value, kind) for value in values):
            raise ValueError("types or scores are no numbers")
    if len(set(texts)) != len(texts):
        raise ValueError("two tokens have the same text")
    return [Entry(*each) for each in zip(texts, types, scores, strict=True)]


def _texts(metadata: Mapping[str, Any], key: str) -> list[str]:
    values = metadata.get(key)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"there is no list of texts {key}")
    _check_text(values, key)
    return values


def _check_text(values: Iterable[str], key: str) -> None:
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        raise ValueError(f"not all of {key} are text") from None


def _ids(metadata: Mapping[str, Any], model: str, count: int) -> dict[str, int]:
    found = {}
    for name in _NAMED:
        number = metadata.get(ID_KEYS[name], _LLAMA_IDS.get(name) if model == "llama" else None)
        if type(number) is int and 0 <= number < count:
            found[name] = number
    return found


def _pair(merge: str) -> tuple[str, str]:
    first, _, second = merge[1:].partition(" ")
    return merge[:1] + first, second


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"{_GGML}add_{name}_token", default)
    return value if isinstance(value, bool) else default


def _post_processor(entries: list[Entry], first: str | None, last: str | None) -> dict[str, Any]:
    """Return what puts the first and the last token around a text, and around each of two."""
    texts = [text for text in (first, last) if text is not None]
    numbers = {entry.text: number for number, entry in enumerate(entries) if entry.text in texts}

    def around(sequence: str, kind: int) -> list[dict[str, Any]]:
        def special(text: str | None) -> list[dict[str, Any]]:
            return [] if text is None else [{"SpecialToken": {"id": text, "type_id": kind}}]

        return [*special(first), {"Sequence": {"id": sequence, "type_id": kind}}, *special(last)]

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {text: {"id": text, "ids": [numbers[text]], "tokens": [text]} for text in texts},
    }


def _template(metadata: Mapping[str, Any]) -> str | list[dict[str, str]] | None:
    """Return the chat template, or all of them by name where there are several; ValueError for no text."""
    default, names = metadata.get(_TEMPLATE), metadata.get("tokenizer.chat_templates")
    found = [("default", default)]
    if isinstance(names, list):
        found += [(name, metadata.get(f"{_TEMPLATE}.{name}")) for name in names if isinstance(name, str)]
    templates = [{"name": name, "template": text} for name, text in found if isinstance(text, str)]
    _check_text((text for each in templates for text in each.values()), _TEMPLATE)
    return default if isinstance(default, str) and len(templates) == 1 else templates or None
