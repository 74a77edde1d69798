"""Byte-level tokenizers in GGUF files, against ``gguf.vocab``: the values of llama.cpp's converter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import BpeVocab, SpecialVocab, TokenType
from transformers import AutoTokenizer

import ckptio
from ckptio import LossyConversionError, OptionError, UnsupportedError
from trained import TEMPLATE, TEXTS, byte_level, fields, kinds, written

PRE = {"gpt2": "gpt-2", "llama3": "llama-bpe", "qwen2": "qwen2"}
IDS = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}
VALUE_TYPES = {
    "model": ["STRING"],
    "pre": ["STRING"],
    "tokens": ["ARRAY", "STRING"],
    "token_type": ["ARRAY", "INT32"],
    "merges": ["ARRAY", "STRING"],
    "scores": ["ARRAY", "FLOAT32"],
    "bos_token_id": ["UINT32"],
    "eos_token_id": ["UINT32"],
    "unknown_token_id": ["UINT32"],
    "padding_token_id": ["UINT32"],
    "add_bos_token": ["BOOL"],
    "add_eos_token": ["BOOL"],
    "add_sep_token": ["BOOL"],
}
"""As ``GGUFWriter`` of the package has them: ``add_token_types``, ``add_bos_token_id`` and so on."""


def change(path: Path, **parts: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **parts}))


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen2"])
def test_tokens_merges_and_special_tokens_are_those_of_the_package(kind: str, tmp_path: Path) -> None:
    fast = byte_level(kind, tmp_path / "hf")
    found = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    vocab, special = BpeVocab(tmp_path / "hf"), SpecialVocab(tmp_path / "hf", load_merges=True)
    assert found["tokenizer.ggml.model"] == vocab.tokenizer_model
    assert found["tokenizer.ggml.pre"] == PRE[kind]
    # The package gives bytes for added tokens, and text for the others, whatever it declares.
    texts: list[Any] = [text for text, _, _ in vocab.all_tokens()]
    texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
    assert found["tokenizer.ggml.tokens"] == texts
    assert found["tokenizer.ggml.merges"] == special.merges
    for name, number in special.special_token_ids.items():
        assert found[f"tokenizer.ggml.{IDS[name]}_token_id"] == number
    for name, value in special.add_special_token.items():
        assert found[f"tokenizer.ggml.add_{name}_token"] is value
    assert found["tokenizer.chat_template"] == TEMPLATE
    added = fast.added_tokens_decoder
    types = [
        TokenType.NORMAL
        if number not in added
        else TokenType.CONTROL
        if added[number].special
        else TokenType.USER_DEFINED
        for number in range(len(fast))
    ]
    assert found["tokenizer.ggml.token_type"] == types
    for key, kind_of in kinds(tmp_path / "a.gguf").items():
        assert kind_of == VALUE_TYPES.get(key.removeprefix("tokenizer.ggml."), ["STRING"])


@pytest.mark.parametrize("kind", ["gpt2", "llama3"])
def test_transformers_reads_the_same_tokenizer_out_of_the_file(kind: str, tmp_path: Path) -> None:
    fast = byte_level(kind, tmp_path / "hf")
    written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    other = AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf")
    for text in TEXTS:
        if "<" not in text:
            assert other.encode(text, add_special_tokens=False) == fast.encode(text, add_special_tokens=False)
    assert other.eos_token_id == fast.eos_token_id


@pytest.mark.parametrize("kind", ["gpt2", "llama3"])
def test_whether_a_first_token_is_added_is_what_transformers_does(kind: str, tmp_path: Path) -> None:
    fast = byte_level(kind, tmp_path / "hf")
    found = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    adds = fast.encode("x")[0] == fast.bos_token_id
    assert adds is (kind == "llama3")
    assert found["tokenizer.ggml.add_bos_token"] is adds


def test_nothing_said_of_a_first_token_is_none_where_llama_cpp_would_add_one(tmp_path: Path) -> None:
    fast = byte_level("llama3", tmp_path / "hf")
    change(tmp_path / "hf" / "tokenizer.json", post_processor=None)
    found = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    assert found["tokenizer.ggml.add_bos_token"] is False
    change(tmp_path / "hf" / "tokenizer_config.json", add_bos_token=True)
    assert written(tmp_path / "hf", tmp_path / "b.gguf", len(fast))["tokenizer.ggml.add_bos_token"] is True


def test_rows_without_token_are_padded_as_the_converter_does(tmp_path: Path) -> None:
    fast = byte_level("gpt2", tmp_path / "hf")
    count = len(fast)
    found = written(tmp_path / "hf", tmp_path / "a.gguf", count + 2)
    assert found["tokenizer.ggml.tokens"][count:] == [f"[PAD{count}]", f"[PAD{count + 1}]"]
    assert found["tokenizer.ggml.token_type"][count:] == [TokenType.UNUSED] * 2
    # With no embedding there is a token for every id that the tokenizer has.
    assert len(written(tmp_path / "hf", tmp_path / "b.gguf")["tokenizer.ggml.tokens"]) == count


def test_a_hole_in_the_ids_is_padded_where_the_rows_are_known(tmp_path: Path) -> None:
    fast = byte_level("gpt2", tmp_path / "hf")
    content = json.loads((tmp_path / "hf" / "tokenizer.json").read_text())
    content["added_tokens"][0]["id"] = number = len(fast) + 1
    change(tmp_path / "hf" / "tokenizer.json", added_tokens=content["added_tokens"])
    found = written(tmp_path / "hf", tmp_path / "a.gguf", number + 1)
    assert found["tokenizer.ggml.tokens"][-3:] == [
        f"[PAD{number - 2}]",
        f"[PAD{number - 1}]",
        "<|endoftext|>",
    ]
    with pytest.raises(LossyConversionError, match=f"no token has the id {number - 2}"):
        written(tmp_path / "hf", tmp_path / "b.gguf")


def test_the_order_of_a_vocabulary_is_that_of_its_ids(tmp_path: Path) -> None:
    fast = byte_level("gpt2", tmp_path / "hf")
    wanted = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    content = json.loads((tmp_path / "hf" / "tokenizer.json").read_text())
    content["model"]["vocab"] = dict(reversed(content["model"]["vocab"].items()))
    change(tmp_path / "hf" / "tokenizer.json", model=content["model"])
    assert written(tmp_path / "hf", tmp_path / "b.gguf", len(fast)) == wanted


def test_more_tokens_than_rows_are_refused_by_name(tmp_path: Path) -> None:
    fast = byte_level("gpt2", tmp_path / "hf")
    with pytest.raises(LossyConversionError) as caught:
        written(tmp_path / "hf", tmp_path / "a.gguf", len(fast) - 1)
    assert "'<|endoftext|>'" in str(caught.value)
    assert "--allow tokenizer" in str(caught.value)
    assert not (tmp_path / "a.gguf").exists()
    found = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast) - 1, allow=["tokenizer"])
    assert "tokenizer.ggml.tokens" not in found


def test_vocab_json_and_merges_txt_give_what_tokenizer_json_gives(tmp_path: Path) -> None:
    fast = byte_level("gpt2", tmp_path / "hf")
    wanted = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    content = json.loads((tmp_path / "hf" / "tokenizer.json").read_text())
    classic = tmp_path / "classic"
    classic.mkdir()
    vocab = {**content["model"]["vocab"], "<|endoftext|>": len(fast) - 1}
    (classic / "vocab.json").write_text(json.dumps(vocab))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in content["model"]["merges"]), ""]
    (classic / "merges.txt").write_text("\n".join(lines))
    (classic / "config.json").write_text(json.dumps({"model_type": "gpt2", "eos_token_id": len(fast) - 1}))
    found = written(classic, tmp_path / "b.gguf", len(fast))
    for key in ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id"):
        assert found[f"tokenizer.ggml.{key}"] == wanted[f"tokenizer.ggml.{key}"], key
    # The same files under Qwen2's class are Qwen2's tokenizer.
    (classic / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    assert written(classic, tmp_path / "c.gguf", len(fast))["tokenizer.ggml.pre"] == "qwen2"
    (classic / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BartTokenizer"}))
    with pytest.raises(LossyConversionError, match="'BartTokenizer', which is not known.*tokenizer_pre"):
        written(classic, tmp_path / "d.gguf", len(fast))


def test_several_chat_templates_keep_their_names(tmp_path: Path) -> None:
    fast = byte_level("gpt2", tmp_path / "hf")
    (tmp_path / "hf" / "chat_template.jinja").unlink()
    templates = [{"name": "default", "template": "a"}, {"name": "tool use", "template": "b"}]
    change(tmp_path / "hf" / "tokenizer_config.json", chat_template=templates)
    found = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    # As ``GGUFWriter.add_chat_template`` spells them.
    assert found["tokenizer.chat_template"] == "a"
    assert found["tokenizer.chat_template.tool_use"] == "b"
    assert found["tokenizer.chat_templates"] == ["tool_use"]


def test_special_tokens_come_from_the_map_and_from_the_config_of_the_model(tmp_path: Path) -> None:
    fast = byte_level("gpt2", tmp_path / "hf")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "hf" / name).unlink()
    (tmp_path / "hf" / "special_tokens_map.json").write_text(json.dumps({"pad_token": {"content": "!"}}))
    (tmp_path / "hf" / "config.json").write_text(json.dumps({"bos_token_id": 7, "eos_token_id": [1, 2]}))
    found = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    ids = {key: found.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos", "padding")}
    assert ids == {"bos": 7, "eos": None, "padding": fast.convert_tokens_to_ids("!")}


@pytest.mark.parametrize(
    ("change_of", "message"),
    [
        ({"normalizer": {"type": "NFKC"}}, "normalises text"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "puts a space before a text"),
    ],
)
def test_what_llama_cpp_does_otherwise_is_accepted_by_name(
    change_of: dict[str, Any], message: str, tmp_path: Path
) -> None:
    fast = byte_level("gpt2", tmp_path / "hf")
    change(tmp_path / "hf" / "tokenizer.json", **change_of)
    with pytest.raises(LossyConversionError, match=f"{message}.*--allow tokenization"):
        written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    found = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast), allow=["tokenization"])
    assert found["tokenizer.ggml.pre"] == "gpt-2"


def test_another_way_to_split_needs_its_name(tmp_path: Path) -> None:
    fast = byte_level("qwen2", tmp_path / "hf")
    content = json.loads((tmp_path / "hf" / "tokenizer.json").read_text())
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"\w+|\W+"}
    change(tmp_path / "hf" / "tokenizer.json", pre_tokenizer=content["pre_tokenizer"])
    with pytest.raises(LossyConversionError, match="tokenizer_pre=NAME.*--allow tokenizer"):
        written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    found = written(tmp_path / "hf", tmp_path / "a.gguf", len(fast), tokenizer_pre="hunyuan")
    assert found["tokenizer.ggml.pre"] == "hunyuan"


def test_a_tokenizer_of_the_source_stays_unless_another_is_asked_for(tmp_path: Path) -> None:
    one, other = byte_level("gpt2", tmp_path / "one"), byte_level("qwen2", tmp_path / "other")
    rows = max(len(one), len(other))
    before = written(tmp_path / "one", tmp_path / "a.gguf", rows)
    ckptio.convert(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()
    report = ckptio.convert(
        tmp_path / "a.gguf", tmp_path / "c.gguf", options={"tokenizer": str(tmp_path / "other")}
    )
    after = fields(tmp_path / "c.gguf")
    assert after == written(tmp_path / "other", tmp_path / "d.gguf", rows)
    assert after != before
    # No sidecar brings the old one back.
    assert report.sidecar is None


def test_options_that_name_no_tokenizer_are_told_so(tmp_path: Path) -> None:
    arrays = {"x": np.zeros(32, np.float32)}
    (tmp_path / "empty").mkdir()
    for value, message in (
        (str(tmp_path / "none"), "no such directory"),
        (str(tmp_path / "empty"), "has none of tokenizer.json"),
    ):
        with pytest.raises(OptionError, match=message):
            ckptio.save(arrays, tmp_path / "a.gguf", options={"tokenizer": value})
    with pytest.raises(OptionError, match="gpt-2, llama-bpe or qwen2"):
        ckptio.save(arrays, tmp_path / "a.gguf", options={"tokenizer_pre": "a b"})
    with pytest.raises(UnsupportedError, match="of no use without"):
        ckptio.save(arrays, tmp_path / "a.gguf", options={"tokenizer_pre": "gpt-2"})
    ckptio.save(arrays, tmp_path / "a.gguf", options={"tokenizer": "none"})
    assert fields(tmp_path / "a.gguf") == {}
