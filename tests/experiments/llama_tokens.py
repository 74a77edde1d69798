"""The tokens of llama.cpp, with tokenizers that ckptio puts into GGUF files, against their own libraries.

Usage: ``python tests/experiments/llama_tokens.py``

Needs llama-cpp-python beside transformers, tokenizers and sentencepiece. Tiny tokenizers as GPT-2, LLaMA 3,
Qwen2 and LLaMA 2 have them are trained and written; llama.cpp must cut texts of many scripts into the same
tokens, put the same first token before them, and know the same last one. It normalises nothing, so it is
given what Qwen2's tokenizer would make of a text. A table is printed; the exit status is 1 where they differ.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """A tokenizer in a folder: how many tokens it has, its last token, and what it makes of a text.

    ``special`` says whether it takes the names of special tokens in a text for these tokens.
    """

    name: str
    folder: Path
    count: int
    last: int
    encode: Callable[[str], list[int]]
    encode_whole: Callable[[str], list[int]]
    special: bool = True


def cases(trained: Any, work: Path) -> Iterator[Case]:
    """Yield the tokenizers, each trained and saved by its own library."""
    for kind in ("gpt2", "llama3", "qwen2"):
        fast = trained.byte_level(kind, work / kind)

        def bare(text: str, fast: Any = fast) -> list[int]:
            return list(fast.encode(text, add_special_tokens=False))

        yield Case(kind, work / kind, len(fast), fast.eos_token_id, bare, fast.encode)
    for name, options in {"llama2": {}, "llama2_no_prefix": {"add_dummy_prefix": False}}.items():
        model = trained.pieces(work / name, **options)

        def whole(text: str, model: Any = model) -> list[int]:
            return [model.bos_id(), *model.encode(text)]

        ends = model.eos_id()
        yield Case(name, work / name, model.vocab_size(), ends, model.encode, whole, special=False)


def differences(case: Case, texts: list[str], path: Path) -> list[str]:
    """Return each way in which llama.cpp has other tokens."""
    llama_cpp: Any = importlib.import_module("llama_cpp")
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    found = [] if model.token_eos() == case.last else [f"the last token is {model.token_eos()}"]
    for text in texts:
        given = unicodedata.normalize("NFC", text) if case.name == "qwen2" else text
        for adds, encode in ((False, case.encode), (True, case.encode_whole)):
            tokens, wanted = model.tokenize(given.encode(), adds, case.special), encode(text)
            if tokens != wanted:
                found.append(f"{text[:30]!r}: {tokens[:12]} found, {wanted[:12]} expected")
    return found


def main() -> int:
    sys.path.insert(0, str(TESTS))
    trained: Any = importlib.import_module("trained")
    texts = [*trained.TEXTS, trained.ALICE]
    failed = False
    sys.stdout.write("| tokenizer | tokens | texts | verdict |\n|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for case in cases(trained, work):
            path = work / f"{case.name}.gguf"
            trained.written(case.folder, path, case.count)
            found = differences(case, texts, path)
            failed |= bool(found)
            verdict = "; ".join(found) or "the same tokens"
            sys.stdout.write(f"| {case.name} | {case.count} | {len(texts)} | {verdict} |\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
