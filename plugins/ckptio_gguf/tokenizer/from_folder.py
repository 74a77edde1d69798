"""From the tokenizer of a folder to the metadata of a file; the package describes how they correspond."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptio import Checkpoint, CkptError, Problem, UnsupportedError
from ckptio_gguf.notes import OWN
from ckptio_gguf.tokenizer.bpe import is_byte_level, read_byte_level, read_classic
from ckptio_gguf.tokenizer.folder import Folder
from ckptio_gguf.tokenizer.pretokenizers import known_pre
from ckptio_gguf.tokenizer.sentencepiece import is_byte_fallback, read_byte_fallback, read_sentencepiece
from ckptio_gguf.tokenizer.special import Special, template_metadata
from ckptio_gguf.tokenizer.tokens import Found, TokenType, complete, short

__all__ = ["Asked", "parse_folder", "parse_pre", "read_tokenizer", "tokenizer_problems", "with_tokenizer"]

_NONE = "none"
_EMBEDDING = "token_embd.weight"
_PREFIX = "tokenizer."
_SOURCES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_LONGEST_PRE = 64


class Asked:
    """The folder that the option names, and what its tokenizer is in GGUF, once it has been read.

    A check and the writer after it ask for the same, and to read 150,000 tokens takes more than a second.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[tuple[int | None, str | None], tuple[dict[str, Any] | None, list[Problem]]] = {}

    def read(self, rows: int | None, pre: str | None) -> tuple[dict[str, Any] | None, list[Problem]]:
        """Return what `read_tokenizer` does."""
        if (rows, pre) not in self._read:
            self._read[rows, pre] = read_tokenizer(self._path, rows, pre)
        return self._read[rows, pre]


def parse_folder(text: str) -> Asked | None:
    """Return the folder that the option names, None for the word ``none``; ValueError with the reason."""
    if text == _NONE:
        return None
    path = Path(text)
    if not path.is_dir():
        raise ValueError("no such directory; name the folder of a tokenizer, or none")
    if not any((path / name).is_file() for name in _SOURCES):
        raise ValueError(f"has none of {', '.join(_SOURCES)}; 'none' writes a file without tokenizer")
    return Asked(path)


def parse_pre(text: str) -> str:
    """Return the name of a pre-tokenizer; ValueError when it cannot be one."""
    if not (text.isascii() and text.isprintable() and 0 < len(text) <= _LONGEST_PRE and " " not in text):
        raise ValueError("it is a name of llama.cpp's, such as gpt-2, llama-bpe or qwen2")
    return text


def tokenizer_problems(checkpoint: Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
    """Return what speaks against the tokenizer that the options name."""
    if options["tokenizer"] is not None:
        return _asked(checkpoint, options)[1]
    if options["tokenizer_pre"] is not None:
        return [Problem("tokenizer_pre", "is of no use without -o tokenizer=DIR")]
    return []


def with_tokenizer(
    metadata: dict[str, Any], checkpoint: Checkpoint, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the metadata with the tokenizer that the options name, in place of the one that is in them."""
    made = _asked(checkpoint, options)[0] if options["tokenizer"] is not None else None
    if made is None:
        return metadata
    kept = {key: value for key, value in metadata.items() if not key.startswith(_PREFIX)}
    note = kept.get(OWN)
    note = dict(note) if isinstance(note, Mapping) else {}
    types = note.get("types")
    types = types if isinstance(types, Mapping) else {}
    # A list without merges has no type of its own.
    note["types"] = {key: kind for key, kind in types.items() if not key.startswith(_PREFIX)} | {
        key: "[str]" for key, value in made.items() if value == []
    }
    return {**kept, **made, OWN: note}


def _asked(checkpoint: Checkpoint, options: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[Problem]]:
    spec = checkpoint.specs.get(_EMBEDDING)
    rows = spec.shape[0] if spec is not None and len(spec.shape) == 2 else None
    asked = options["tokenizer"]
    asked = asked if isinstance(asked, Asked) else Asked(Path(asked))
    return asked.read(rows, options["tokenizer_pre"])


def read_tokenizer(
    path: Path, rows: int | None, pre: str | None = None
) -> tuple[dict[str, Any] | None, list[Problem]]:
    """Return llama.cpp's metadata for the tokenizer of a folder, None when there are none, and what is lost.

    ``rows`` are those of the embedding; ``pre`` is llama.cpp's name of the pre-tokenizer, where asked for.
    """
    folder = Folder(path)
    try:
        document = folder.json("tokenizer.json") or {}
        found = _found(folder, document, pre)
        metadata = _metadata(folder, document, found, rows)
    except CkptError as error:
        return None, [Problem("tokenizer", str(error), allow="tokenizer")]
    if pre is not None and found.model != "gpt2":
        found.problems.append(Problem("tokenizer_pre", "is of no use for a tokenizer with scores"))
    final = any(problem.allow == "tokenizer" for problem in found.problems)
    return None if final else metadata, found.problems


def _found(folder: Folder, document: Mapping[str, Any], pre: str | None) -> Found:
    if document and is_byte_level(document):
        return read_byte_level(folder, document, pre)
    if folder.has("tokenizer.model"):
        return read_sentencepiece(folder, document)
    if document and is_byte_fallback(document):
        return read_byte_fallback(folder, document)
    if not document and folder.has("vocab.json"):
        return read_classic(folder, pre)
    model = document.get("model")
    kind = model.get("type") if isinstance(model, Mapping) else None
    what = f"a tokenizer of the kind {short(kind)} with this pre-tokenizer has no place in GGUF"
    raise UnsupportedError(f"{folder.path / 'tokenizer.json'}: {what}")


def _metadata(folder: Folder, document: Mapping[str, Any], found: Found, rows: int | None) -> dict[str, Any]:
    special = Special(folder, document)
    bytewise = found.model == "gpt2"
    if bytewise and not document:
        special.default_texts(("bos", "eos") if found.pre == "gpt-2" else ("eos", "pad"))
    tokens = complete(folder, found.tokens, rows)
    ids = {token.text: number for number, token in enumerate(tokens)}
    known = known_pre(found.pre)
    # llama.cpp adds it unless told otherwise, and a tokenizer that says nothing does not.
    if document and (not bytewise or (known is not None and known.adds_bos)):
        special.adds.setdefault("bos", False)
    for text in special.texts.values():
        number = ids.get(text)
        # transformers makes every token special that has one of these names.
        if number is not None and tokens[number].type is TokenType.NORMAL:
            tokens[number] = dataclasses.replace(tokens[number], type=TokenType.CONTROL)
    made: dict[str, Any] = {"tokenizer.ggml.model": found.model, "tokenizer.ggml.pre": found.pre}
    if found.space_prefix is not None:
        made["tokenizer.ggml.add_space_prefix"] = found.space_prefix
    made["tokenizer.ggml.tokens"] = [token.text for token in tokens]
    if not bytewise:
        made["tokenizer.ggml.scores"] = [token.score for token in tokens]
    made["tokenizer.ggml.token_type"] = [int(token.type) for token in tokens]
    if found.merges is not None:
        made["tokenizer.ggml.merges"] = found.merges
    return made | special.metadata(ids, found.ids) | template_metadata(folder)
