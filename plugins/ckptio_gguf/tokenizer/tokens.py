"""The tokens of a vocabulary by their ids, checked and completed."""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptio import CorruptCheckpointError, Problem, UnsupportedError
from ckptio.errors import shown
from ckptio_gguf.tokenizer.folder import Folder

__all__ = [
    "Added",
    "Found",
    "Token",
    "TokenType",
    "added_tokens",
    "complete",
    "short",
    "splits",
    "strip_problems",
]

_LOOK_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_WIDE_BAR = "\uff5c"
_SHOWN = 60
_MOST_WORK = 1 << 28
"""The squares of the lengths of all tokens together; Gemma's 256,000 tokens have a twentieth of it."""


class TokenType(enum.IntEnum):
    """The types of llama.cpp and sentencepiece, by their numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the file has it."""

    text: str
    type: TokenType = TokenType.NORMAL
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Added:
    """A token beside the model's own; ``strips`` says that it takes in spaces or wants to be a whole word."""

    text: str
    special: bool
    strips: bool = False

    @property
    def token(self) -> Token:
        """The token in the file: special ones are control tokens, and others have their spaces plain."""
        if self.special or _looks_special(self.text):
            return Token(self.text, TokenType.CONTROL, -1000.0)
        return Token(self.text.replace("▁", " "), TokenType.USER_DEFINED, -1000.0)


@dataclass(slots=True)
class Found:
    """A tokenizer as it is found: llama.cpp's model and pre-tokenizer, the tokens by id, and what speaks
    against it. ``ids`` are those that the model itself gives to ``bos``, ``eos``, ``unk`` and ``pad``.
    """

    model: str
    pre: str
    tokens: dict[int, Token]
    merges: list[str] | None = None
    space_prefix: bool | None = None
    ids: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def _looks_special(text: str) -> bool:
    """Return whether a token is a control token by its looks, as llama.cpp's converter has it."""
    return (
        text in _LOOK_SPECIAL
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith(f"<{_WIDE_BAR}") and text.endswith(f"{_WIDE_BAR}>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def added_tokens(folder: Folder, document: Mapping[str, Any]) -> dict[int, Added]:
    """Return the added tokens by id: those of ``tokenizer.json`` (``document``), of ``added_tokens.json``
    and of ``tokenizer_config.json``.
    """
    found: dict[int, Added] = {}
    listed = document.get("added_tokens") or []
    if not isinstance(listed, list):
        raise folder.error("tokenizer.json", "added_tokens is no list")
    for entry in listed:
        found_id = entry.get("id") if isinstance(entry, dict) else None
        _add(folder, "tokenizer.json", found, found_id, entry)
    for text, number in (folder.json("added_tokens.json") or {}).items():
        _add(folder, "added_tokens.json", found, number, {"content": text})
    decoder = (folder.json("tokenizer_config.json") or {}).get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise folder.error("tokenizer_config.json", "added_tokens_decoder is no object")
    for key, entry in decoder.items():
        number = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else None
        _add(folder, "tokenizer_config.json", found, number, entry, replace=True)
    return found


def _add(
    folder: Folder, name: str, found: dict[int, Added], number: Any, entry: Any, *, replace: bool = False
) -> None:
    text = entry.get("content") if isinstance(entry, dict) else None
    if type(number) is not int or number < 0 or not isinstance(text, str) or not text:
        raise folder.error(name, f"an added token has no id or no text: {short(entry)}")
    if number in found and not replace:
        if found[number].text == text:
            return
        what = f"two added tokens have the id {number}: {short(found[number].text)} and {short(text)}"
        raise folder.error(name, what)
    strips = any(entry.get(key) is True for key in ("lstrip", "rstrip", "single_word"))
    found[number] = Added(text, entry.get("special") is True, strips)


def strip_problems(added: Mapping[int, Added]) -> Iterator[Problem]:
    """Yield what added tokens do and llama.cpp does not."""
    texts = [short(each.text) for each in added.values() if each.strips]
    if texts:
        what = f"{', '.join(texts[:5])} take in spaces, or are whole words only; not so in llama.cpp"
        yield Problem("tokenizer", what, allow="tokenization")


def complete(folder: Folder, tokens: Mapping[int, Token], rows: int | None) -> list[Token]:
    """Return the tokens from id 0 on, one for each of the ``rows`` of the embedding where they are known.

    A row without token becomes ``[PADi]``, unused, as llama.cpp's converter has it.
    """
    if not tokens:
        raise CorruptCheckpointError("a tokenizer without tokens", path=folder.path)
    highest = max(tokens)
    if rows is None and highest >= len(tokens):
        lacking = next(number for number in range(highest) if number not in tokens)
        raise UnsupportedError(f"{folder.path}: no token has the id {lacking}; the highest is {highest}")
    if rows is not None and highest >= rows:
        over = sum(number >= rows for number in tokens)
        what = f"{over} tokens are beyond the {rows} rows of the embedding, up to {highest}"
        raise UnsupportedError(f"{folder.path}: {what}: {short(tokens[highest].text)}")
    ids: dict[str, int] = {}
    listed = []
    for number in range(rows or len(tokens)):
        token = tokens.get(number) or Token(f"[PAD{number}]", TokenType.UNUSED, -10000.0)
        before = ids.setdefault(token.text, number)
        if before != number:
            raise UnsupportedError(f"{folder.path}: {short(token.text)} is two tokens, {before} and {number}")
        listed.append(token)
    return listed


def splits(tokens: Iterable[str], among: Container[str]) -> Iterator[tuple[str, int]]:
    """Yield each token of two others, once for each place at which it can be cut into them.

    Raises ValueError when they are too long for that: no program makes such ones.
    """
    work = 0
    for text in tokens:
        work += len(text) ** 2
        if work > _MOST_WORK:
            raise ValueError("its tokens are too long to be cut in all ways")
        for at in range(1, len(text)):
            if text[:at] in among and text[at:] in among:
                yield text, at


def short(value: Any) -> str:
    """Return a value for a message."""
    return shown(value, _SHOWN)
