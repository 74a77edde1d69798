"""Tiny tokenizers as GPT-2, LLaMA 3, Qwen2 and LLaMA 2 have them, trained on the spot by their libraries."""

from __future__ import annotations

import functools
import io
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from gguf import GGUFReader
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import ckptio

TEMPLATE = "{% for each in messages %}<|{{ each.role }}|>{{ each.content }}{% endfor %}"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""From the ``tokenizer.json`` of LLaMA 3, as transformers 5.24 spells it for GGUF too."""
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
"""From ``tokenization_qwen2.py`` of transformers 5.24."""
ALICE = (Path(__file__).parent.parent / "examples" / "alice.txt").read_text()
SAMPLE = [ALICE[:20_000], "naïve café 12345 汉字 ", "don't I'VE x = 1\n\n\ny = 22\t\r\n", "привет мир"]
TEXTS = [
    *("", " ", "  two  spaces ", "\n\n \n", "don't I'LL you'Re 'S", "1 22 333 4444 55555 3.14", "a\r\n\r\nb"),
    *(
        "naïve café",
        "🚀😶\u200d🌫️ ✅",
        "汉字。〜12",
        "привет, мир",
        "हिन्दी ١٢٣",
        "\u00a0\u2003\u3000x",
        "½ ² Ⅷ",
    ),
    *("x=1;y[2]={'a':\"b\"}", "snake_case CamelCase", "a<|im_start|>b<|im_end|> c", "<think>so</think>"),
    *(
        "<|endoftext|>",
        "</s> <s>x",
        "\x00\x01",
        "cafe\u0301",
        "\ufeffbom",
        "tail \n ",
        ALICE[100:400],
        ALICE[-200:],
    ),
]


@functools.cache
def _trained(kind: str) -> str:
    made = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "gpt2")
    regex = {"llama3": LLAMA3, "qwen2": QWEN2}.get(kind)
    first = [pre_tokenizers.Split(Regex(regex), "isolated")] if regex else []
    made.pre_tokenizer = pre_tokenizers.Sequence([*first, last]) if first else last
    made.normalizer = normalizers.NFC() if kind == "qwen2" else None
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(SAMPLE, trainer)
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    if kind == "gpt2":
        made.add_special_tokens(["<|endoftext|>"])
    elif kind == "qwen2":
        made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
        made.add_tokens(["<think>", "</think>"])
    else:
        made.add_special_tokens(["<s>", "</s>"])
        made.post_processor = processors.TemplateProcessing(
            "<s> $A", "<s> $A <s>:1 $B:1", [("<s>", made.token_to_id("<s>"))]
        )
    return str(made.to_str())


SPECIAL = {
    "gpt2": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    "llama3": {"bos_token": "<s>", "eos_token": "</s>"},
    "qwen2": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
}


def byte_level(kind: str, folder: Path) -> PreTrainedTokenizerFast:
    """Save a BPE over bytes as transformers does it, and return it."""
    backend = Tokenizer.from_str(_trained(kind))
    made = PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL[kind])  # type: ignore[no-untyped-call]
    made.chat_template = TEMPLATE
    made.save_pretrained(folder)
    return made


@functools.cache
def _sentencepiece(**options: Any) -> bytes:
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 400,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "max_sentence_length": 1 << 16,
        "minloglevel": 2,
        **options,
    }
    sentencepiece.SentencePieceTrainer.Train(sentence_iterator=iter(SAMPLE), model_writer=model, **settings)
    return model.getvalue()


def pieces(folder: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """Save a BPE of sentencepiece, as LLaMA 2 has it but for ``options``, and return it."""
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(_sentencepiece(**options))
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def written(
    folder: Path, path: Path, rows: int | None = None, allow: Collection[str] = (), **options: str
) -> dict[str, Any]:
    """Write a file of one embedding with the tokenizer of ``folder``; return what the package gguf finds."""
    array = np.zeros((rows or 1, 32), np.float32)
    plain = path.with_name(f"without-{path.name}")
    metadata = {"general.architecture": "llama"}
    ckptio.save({"token_embd.weight" if rows else "x": array}, plain, metadata=metadata, overwrite=True)
    ckptio.convert(plain, path, options={"tokenizer": str(folder), **options}, allow=allow)
    return fields(path)


def fields(path: Path) -> dict[str, Any]:
    """Return the values under ``tokenizer.`` as the package gguf reads them."""
    found = GGUFReader(path).fields.items()
    return {key: field.contents() for key, field in found if key.startswith("tokenizer.")}


def kinds(path: Path) -> dict[str, list[str]]:
    """Return the types of the values under ``tokenizer.``, by the names of the package gguf."""
    found = GGUFReader(path).fields.items()
    return {key: [kind.name for kind in field.types] for key, field in found if key.startswith("tokenizer.")}
