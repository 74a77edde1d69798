"""Tokenizers with scores in GGUF files: of sentencepiece, and transformers' BPE with byte fallback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import LlamaHfVocab, SentencePieceVocab, TokenType
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from ckptio import LossyConversionError, UnsupportedError
from trained import TEXTS, pieces, written


def vocabulary(found: dict[str, Any]) -> list[tuple[str, float, int]]:
    keys = ("tokens", "scores", "token_type")
    return list(zip(*(found[f"tokenizer.ggml.{key}"] for key in keys), strict=True))


def test_pieces_scores_and_types_are_those_of_the_package(tmp_path: Path) -> None:
    model = pieces(tmp_path / "sp", user_defined_symbols="<|x|>", control_symbols="<ctl>")
    (tmp_path / "sp" / "added_tokens.json").write_text(json.dumps({"<more>": model.vocab_size()}))
    found = written(tmp_path / "sp", tmp_path / "a.gguf", model.vocab_size() + 2, allow=["tokenization"])
    wanted = [
        (text.decode(), score, kind)
        for text, score, kind in SentencePieceVocab(tmp_path / "sp").all_tokens()
        if isinstance(text, bytes)
    ]
    # The package calls what sentencepiece calls user-defined normal; llama.cpp's converter does so too.
    at = model.piece_to_id("<|x|>")
    assert wanted[at] == ("<|x|>", model.get_score(at), TokenType.NORMAL)
    wanted[at] = ("<|x|>", model.get_score(at), TokenType.USER_DEFINED)
    number = len(wanted)
    assert vocabulary(found) == [*wanted, (f"[PAD{number}]", -10000.0, TokenType.UNUSED)]
    assert (found["tokenizer.ggml.model"], found["tokenizer.ggml.pre"]) == ("llama", "default")
    for name, number in (("bos", model.bos_id()), ("eos", model.eos_id()), ("unknown", model.unk_id())):
        assert found[f"tokenizer.ggml.{name}_token_id"] == number
    assert "tokenizer.ggml.padding_token_id" not in found


def test_added_tokens_of_the_config_stand_over_the_pieces(tmp_path: Path) -> None:
    model = pieces(tmp_path / "sp")
    count = model.vocab_size()
    decoder = {
        "0": {"content": "<unk>", "special": True},
        str(count): {"content": "<extra>", "special": False},
        str(count + 1): {"content": "▁▁", "special": False},
    }
    config = {"added_tokens_decoder": decoder, "pad_token": "<extra>", "add_bos_token": False}
    (tmp_path / "sp" / "tokenizer_config.json").write_text(json.dumps(config))
    found = written(tmp_path / "sp", tmp_path / "a.gguf", count + 2)
    # As llama.cpp's ``_create_vocab_sentencepiece`` has them.
    listed = vocabulary(found)
    assert listed[0] == ("<unk>", -1000.0, TokenType.CONTROL)
    assert listed[count:] == [(text, -1000.0, TokenType.USER_DEFINED) for text in ("<extra>", "  ")]
    assert found["tokenizer.ggml.padding_token_id"] == count
    assert found["tokenizer.ggml.add_bos_token"] is False


def test_no_space_before_a_text_is_said(tmp_path: Path) -> None:
    pieces(tmp_path / "with")
    pieces(tmp_path / "without", add_dummy_prefix=False)
    assert "tokenizer.ggml.add_space_prefix" not in written(tmp_path / "with", tmp_path / "a.gguf")
    found = written(tmp_path / "without", tmp_path / "b.gguf")
    assert found["tokenizer.ggml.add_space_prefix"] is False
    # As llama.cpp's ``LlamaModel.set_vocab`` has it.
    (tmp_path / "with" / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": False}))
    found = written(tmp_path / "with", tmp_path / "c.gguf")
    assert found["tokenizer.ggml.add_space_prefix"] is False


def test_a_name_of_a_pre_tokenizer_is_for_bytes_only(tmp_path: Path) -> None:
    pieces(tmp_path / "sp")
    with pytest.raises(UnsupportedError, match="tokenizer_pre: is of no use for a tokenizer with scores"):
        written(tmp_path / "sp", tmp_path / "a.gguf", tokenizer_pre="gpt-2")


@pytest.mark.parametrize(
    ("options", "message", "word"),
    [
        ({"model_type": "unigram"}, "is a unigram model", "tokenizer"),
        ({"normalization_rule_name": "nmt_nfkc"}, "normalises text", "tokenization"),
        ({"user_defined_symbols": "the"}, "pieces of its user", "tokenization"),
        ({"byte_fallback": False}, "no tokens for bytes", "tokenization"),
        ({"remove_extra_whitespaces": True}, "removes extra spaces", "tokenization"),
    ],
)
def test_what_llama_cpp_does_otherwise_is_refused(
    options: dict[str, Any], message: str, word: str, tmp_path: Path
) -> None:
    pieces(tmp_path / "sp", **options)
    with pytest.raises(LossyConversionError, match=f"{message}.*--allow {word}"):
        written(tmp_path / "sp", tmp_path / "a.gguf")
    found = written(tmp_path / "sp", tmp_path / "a.gguf", allow=[word])
    assert ("tokenizer.ggml.tokens" in found) is (word == "tokenization")


def fallback(folder: Path, scores: Path) -> PreTrainedTokenizerFast:
    """Save the tokenizer of ``scores`` as LLaMA 2's ``tokenizer.json`` has it: all merges, best first."""
    model = pieces(scores)
    texts = [model.id_to_piece(number) for number in range(model.vocab_size())]
    normal = {
        text: number
        for number, text in enumerate(texts)
        if not (model.is_byte(number) or model.is_control(number) or model.is_unknown(number))
    }
    merges = [
        (-model.get_score(number), text[:at], text[at:])
        for text, number in normal.items()
        for at in range(1, len(text))
        if text[:at] in normal and text[at:] in normal
    ]
    pairs = [(first, second) for _, first, second in sorted(merges, key=lambda merge: merge[0])]
    vocab = {text: number for number, text in enumerate(texts)}
    bpe = models.BPE(vocab=vocab, merges=pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    made = Tokenizer(bpe)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(folder)
    return fast


def test_a_tokenizer_json_with_byte_fallback_has_the_tokens_of_the_package(tmp_path: Path) -> None:
    fast = fallback(tmp_path / "hf", tmp_path / "sp")
    found = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    wanted = [(text, kind) for text, _, kind in LlamaHfVocab(tmp_path / "hf").all_tokens()]
    assert [(text.encode(), kind) for text, _, kind in vocabulary(found)] == wanted
    assert found["tokenizer.ggml.add_bos_token"] is True
    assert "tokenizer.ggml.add_space_prefix" not in found


def test_its_scores_rank_the_merges_as_sentencepiece_does(tmp_path: Path) -> None:
    fast = fallback(tmp_path / "hf", tmp_path / "sp")
    ranks = np.array(written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))["tokenizer.ggml.scores"])
    scores = np.array(written(tmp_path / "sp", tmp_path / "b.gguf", len(fast))["tokenizer.ggml.scores"])
    merged = [number for number in range(len(fast)) if ranks[number] < 0 and scores[number] < 0]
    assert len(merged) > 50
    assert np.argsort(-ranks[merged], kind="stable").tolist() == np.argsort(-scores[merged]).tolist()


def test_merges_that_no_score_can_say_are_refused(tmp_path: Path) -> None:
    fallback(tmp_path / "hf", tmp_path / "sp")
    path = tmp_path / "hf" / "tokenizer.json"
    content = json.loads(path.read_text())
    del content["model"]["merges"][3]
    path.write_text(json.dumps(content))
    with pytest.raises(LossyConversionError, match="merges that no scores can say.*--allow tokenization"):
        written(tmp_path / "hf", tmp_path / "a.gguf")


def test_the_tokenizer_of_the_test_is_that_of_sentencepiece(tmp_path: Path) -> None:
    fast = fallback(tmp_path / "hf", tmp_path / "sp")
    model = pieces(tmp_path / "again")
    for text in TEXTS:
        if "<" not in text and text:
            assert fast.encode(text, add_special_tokens=False) == model.encode(text)
