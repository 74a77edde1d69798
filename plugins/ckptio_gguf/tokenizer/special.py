"""Special tokens and the chat template: what a folder says of them, in llama.cpp's keys.

The order of precedence is that of ``SpecialVocab`` in the package gguf: what the post-processor of
``tokenizer.json`` adds, then ``tokenizer_config.json``, then the ids of ``config.json``.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptio_gguf.tokenizer.folder import Folder

__all__ = ["ID_KEYS", "Special", "template_metadata"]

ID_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",
    "pad": "tokenizer.ggml.padding_token_id",
    "mask": "tokenizer.ggml.mask_token_id",
}
"""llama.cpp's key for each special token; the spelling of ``seperator`` is its own."""
_ADDS = ("bos", "eos", "sep")
_CONFIG = "tokenizer_config.json"
_TEMPLATE = "tokenizer.chat_template"
_PLAIN = frozenset(string.ascii_letters + string.digits)
_ENDOFTEXT = "<|endoftext|>"


class Special:
    """The special tokens of a folder: texts, ids in ``config.json``, and which are added to a text."""

    def __init__(self, folder: Folder, document: Mapping[str, Any]) -> None:
        config = {**(folder.json("special_tokens_map.json") or {}), **_not_none(folder.json(_CONFIG))}
        self.texts = {}
        for name in (*ID_KEYS, "cls"):
            text = config.get(f"{name}_token")
            text = text.get("content") if isinstance(text, Mapping) else text
            if isinstance(text, str):
                self.texts[name] = text
        for name, other in (("bos", "cls"), ("eos", "sep")):
            if other in self.texts:
                self.texts.setdefault(name, self.texts[other])
        self.adds: dict[str, bool] = {}
        for part in _post_processors(document):
            self._take_post_processor(part)
        for name in _ADDS:
            if isinstance(config.get(f"add_{name}_token"), bool):
                self.adds.setdefault(name, config[f"add_{name}_token"])
        stated = folder.json("config.json") or {}
        self.stated = {name: stated.get(f"{name}_token_id") for name in ID_KEYS}

    def _take_post_processor(self, part: Mapping[str, Any]) -> None:
        kind = part.get("type")
        if kind == "ByteLevel":
            self.adds.setdefault("bos", False)
            self.adds.setdefault("eos", False)
        elif kind == "RobertaProcessing":
            self.adds |= {"bos": True, "eos": True, "sep": True}
        elif kind == "TemplateProcessing":
            single = part.get("single")
            ends = (single[0], single[-1]) if isinstance(single, list) and len(single) > 1 else (None, None)
            first, last = map(_special_of, ends)
            if first is not None:
                self.adds["bos"] = first in (self.texts.setdefault("bos", first), self.texts.get("cls"))
            if last is not None:
                if last != self.texts.setdefault("eos", last):
                    self.texts["eot"], self.texts["eos"] = self.texts["eos"], last
                self.adds["eos"] = True
            self._take_separator(_between(part.get("pair")), ends=last is not None)

    def _take_separator(self, between: Sequence[str | None], *, ends: bool) -> None:
        """Take what stands between two texts; ``ends`` is whether a token stands behind each anyhow."""
        known = [self.texts[name] for name in ("sep", "eos") if name in self.texts]
        if between:
            second = len(between) == 2 and between[1] in known
            self.adds["sep"] = second or (between[0] in known and not ends)

    def default_texts(self, names: Sequence[str]) -> None:
        """Let ``<|endoftext|>`` be those special tokens of which nothing is said."""
        for name in names:
            if self.stated[name] is None:
                self.texts.setdefault(name, _ENDOFTEXT)

    def metadata(self, ids: Mapping[str, int], own: Mapping[str, int]) -> dict[str, Any]:
        """Return llama.cpp's metadata; ``ids`` are those of all tokens, ``own`` those of the model itself."""
        found: dict[str, Any] = {}
        for name, key in ID_KEYS.items():
            for number in (ids.get(self.texts.get(name, "")), self.stated[name], own.get(name)):
                if type(number) is int and 0 <= number < len(ids):
                    found[key] = number
                    break
        return found | {
            f"tokenizer.ggml.add_{name}_token": self.adds[name] for name in _ADDS if name in self.adds
        }


def _not_none(config: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (config or {}).items() if value is not None}


def _post_processors(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    whole = document.get("post_processor")
    parts = whole.get("processors") if isinstance(whole, Mapping) else None
    for part in parts if isinstance(parts, list) else [whole]:
        if isinstance(part, Mapping):
            yield part


def _between(pair: Any) -> list[str | None]:
    """Return the special tokens between two texts that belong together."""
    pieces = pair if isinstance(pair, list) else []
    texts = [at for at, piece in enumerate(pieces) if isinstance(piece, Mapping) and "Sequence" in piece]
    return [_special_of(piece) for piece in pieces[texts[0] + 1 : texts[-1]]] if len(texts) == 2 else []


def _special_of(piece: Any) -> str | None:
    token = piece.get("SpecialToken") if isinstance(piece, Mapping) else None
    text = token.get("id") if isinstance(token, Mapping) else None
    return text if isinstance(text, str) and text else None


def template_metadata(folder: Folder) -> dict[str, Any]:
    """Return the chat template, or the several by their names."""
    template = (folder.json(_CONFIG) or {}).get("chat_template")
    if template is None:
        template = _template_file(folder)
    if isinstance(template, str):
        return {_TEMPLATE: template}
    if not isinstance(template, list | None):
        raise folder.error(_CONFIG, "chat_template is neither a text nor a list")
    found: dict[str, Any] = {}
    names = []
    for entry in template or []:
        name, text = (
            (entry.get("name"), entry.get("template")) if isinstance(entry, Mapping) else (None, None)
        )
        if not (isinstance(name, str) and name and isinstance(text, str)):
            raise folder.error(_CONFIG, "a chat template has no name or no text")
        plain = "".join(letter if letter in _PLAIN else "_" for letter in name)
        if plain == "default":
            found[_TEMPLATE] = text
        else:
            names.append(plain)
            found[f"{_TEMPLATE}.{plain}"] = text
    if names:
        found["tokenizer.chat_templates"] = list(dict.fromkeys(names))
    return found


def _template_file(folder: Folder) -> Any:
    """Return the template of a file of its own: ``chat_template.jinja``, with those beside it, or JSON."""
    text = folder.text("chat_template.jinja")
    if text is None:
        return (folder.json("chat_template.json") or {}).get("chat_template")
    further = sorted((folder.path / "additional_chat_templates").glob("*.jinja"))
    more = [
        {"name": path.stem, "template": folder.text(str(path.relative_to(folder.path)))} for path in further
    ]
    return [{"name": "default", "template": text}, *more] if more else text
