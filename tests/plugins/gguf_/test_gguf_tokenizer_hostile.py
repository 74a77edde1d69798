"""Files of a tokenizer that claim what is not so: one message each, and nothing is written."""

from __future__ import annotations

import json
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ckptio
from ckptio import LossyConversionError
from ckptio_gguf.tokenizer.from_folder import read_tokenizer
from ckptio_gguf.tokenizer.to_folder import companions_of
from trained import QWEN2, written

SPLIT = {"type": "ByteLevel", "add_prefix_space": False}
DEEP = 100_000


def document(vocab: Any, merges: Any = (), added: Any = (), **more: Any) -> str:
    model = {"type": "BPE", "vocab": vocab, "merges": merges}
    return json.dumps({"added_tokens": added, "pre_tokenizer": SPLIT, "model": model, **more})


def added(number: Any, content: Any) -> dict[str, Any]:
    return {"id": number, "content": content, "special": True}


JSON: dict[str, tuple[str | bytes, str]] = {
    "no JSON": ("{", "is not valid JSON"),
    "no object": ("[]", "is not a JSON object"),
    "an object too deep": ('{"a":' * DEEP + "1" + "}" * DEEP, "is nested more than"),
    "a key twice": ('{"a":1,"a":2}', "occurs twice"),
    "half a character": (document({"\ud800": 0}), "lone surrogate"),
    "no UTF-8": (b"{\xff}", "is not UTF-8"),
    "nothing": ("{}", "of the kind None"),
    "words of BERT": (document({"a": 0}).replace("BPE", "WordPiece"), "of the kind 'WordPiece'"),
    "no vocabulary": (document({}), "has no vocabulary"),
    "a vocabulary of unigrams": (document([["a", 0.0]]), "has no vocabulary"),
    "an id twice": (document({"a": 0, "b": 0}), "two tokens have the id 0: 'a' and 'b'"),
    "a negative id": (document({"a": -1}), "no id or no text: 'a': -1"),
    "an id of no number": (document({"a": "0"}), "no id or no text: 'a': '0'"),
    "a true id": (document({"a": True}), "no id or no text"),
    "no text": (document({"": 0}), "no id or no text: ''"),
    "a hole": (document({"a": 0, "b": 2}), "no token has the id 1"),
    "a huge id": (document({"a": 0, "b": 10**12}), "no token has the id 1"),
    "no merges": (document({"a": 0}, None), "has no list of merges"),
    "a merge of three": (document({"a": 0}, ["a a a"]), "merge 0 is no pair"),
    "a merge of numbers": (document({"a": 0}, [[1, 2]]), "merge 0 is no pair"),
    "a merge of no token": (document({"a": 0, "b": 1}, ["a b"]), "merge 0 is not of tokens to a token"),
    "added without id": (document({"a": 0}, added=[{"content": "b"}]), "no id or no text"),
    "added without text": (document({"a": 0}, added=[added(1, "")]), "no id or no text"),
    "added that are no list": (document({"a": 0}, added={"b": 1}), "added_tokens is no list"),
    "added twice": (document({"a": 0}, added=[added(1, "b"), added(1, "c")]), "have the id 1: 'b' and 'c'"),
    "one text twice": (
        document({"a": 0}, added=[added(1, "b"), added(2, "b")]),
        "'b' is two tokens, 1 and 2",
    ),
    "added over another": (document({"a": 0}, added=[added(0, "b")]), "'b' has the id 0, and the vocab"),
    "added elsewhere": (document({"a": 0}, added=[added(1, "a")]), "'a' has the id 1, and the vocab"),
    "a strange splitter": (document({"a": 0}, pre_tokenizer={"pretokenizers": 1}), "of the kind 'BPE'"),
}


@pytest.mark.parametrize("name", JSON)
def test_a_bad_tokenizer_json_gives_one_message(name: str, tmp_path: Path) -> None:
    content, message = JSON[name]
    folder = tmp_path / "hf"
    folder.mkdir()
    data = content if isinstance(content, bytes) else content.encode()
    (folder / "tokenizer.json").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(LossyConversionError, match=message) as caught:
        written(folder, tmp_path / "a.gguf")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 << 20
    assert str(folder) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2
    assert "--allow tokenizer" in str(caught.value)
    assert not (tmp_path / "a.gguf").exists()


def piece(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return b"\x0a" + bytes([len(body)]) + body


TEXT, SCORE = b"\x0a\x01a", b"\x15\0\0\0\0"
BPE = b"\x12\x02\x18\x02"
MODEL = {
    "no message": (b"IQ== 0\nIg== 1\n", "is no model of sentencepiece"),
    "cut": (piece(TEXT, SCORE)[:-1], "a field of 8 bytes, and 7 are left"),
    "a piece of 2^63": (b"\x0a" + b"\xff" * 8 + b"\x7f", "a field of 9223372036854775807 bytes"),
    "a number without end": (b"\x0a" + b"\xff" * 20, "a number without end"),
    "a group": (b"\x0b", "a field of the type 3"),
    "the field 0": (b"\x02\0", "begins no field"),
    "a piece that is a number": (b"\x08\x01", "a number stands where a message"),
    "no text": (BPE + piece(SCORE), "no text or no score"),
    "no UTF-8": (BPE + piece(b"\x0a\x01\xff", SCORE), "is no model of sentencepiece"),
    "no score": (BPE + piece(TEXT, b"\x15\0\0\xc0\x7f"), "no text or no score"),
    "a score of 8 bytes": (BPE + piece(TEXT, b"\x11" + bytes(8)), "not a text, a score and a type"),
    "a type of none": (BPE + piece(TEXT, SCORE, b"\x18\x09"), "is no model of sentencepiece"),
    "no pieces": (BPE, "there are no pieces in it"),
    "unigrams": (piece(TEXT, SCORE), "is a unigram model"),
    "the same piece twice": (BPE + piece(TEXT, SCORE) * 2, "'a' is two tokens, 0 and 1"),
}


@pytest.mark.parametrize("name", MODEL)
def test_a_bad_tokenizer_model_gives_one_message(name: str, tmp_path: Path) -> None:
    content, message = MODEL[name]
    folder = tmp_path / "sp"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(content)
    with pytest.raises(LossyConversionError, match=message) as caught:
        written(folder, tmp_path / "a.gguf", allow=["tokenization"])
    assert str(folder) in str(caught.value)
    assert not (tmp_path / "a.gguf").exists()


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    with open(folder / "tokenizer.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(LossyConversionError, match="more than 268435456 bytes: no tokenizer"):
        written(folder, tmp_path / "a.gguf")
    with ckptio.raised_limits(header_bytes=1 << 20):
        (folder / "tokenizer.json").write_text(document({"a": 0}) + " " * (1 << 20))
        with pytest.raises(LossyConversionError, match="more than 1048576 bytes: no tokenizer"):
            written(folder, tmp_path / "a.gguf")


def variants(value: Any) -> Iterator[Any]:
    """Yield a JSON value once for each part of it that is another instead, or is not there."""
    yield from (None, True, -1, 0.5, "", "x", [], [1], {}, {"type": "Sequence"}, {"a": []})
    if isinstance(value, dict):
        for key in value:
            yield {name: each for name, each in value.items() if name != key}
            for other in variants(value[key]):
                yield {**value, key: other}
    if isinstance(value, list):
        for at in range(len(value)):
            for other in variants(value[at]):
                yield [*value[:at], other, *value[at + 1 :]]


WHOLE: dict[str, Any] = {
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated"},
            {**SPLIT, "use_regex": False},
        ],
    },
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "a"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "b"}}],
        "pair": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "b"}}, {"Sequence": {"id": "B"}}],
    },
    "added_tokens": [added(3, "c")],
    "model": {"type": "BPE", "unk_token": "a", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
}


@pytest.mark.parametrize("fallback", [False, True])
def test_no_part_of_a_tokenizer_json_that_is_another_is_a_traceback(fallback: bool, tmp_path: Path) -> None:
    model = {**WHOLE["model"], "byte_fallback": fallback}
    steps = {"type": "Metaspace", "prepend_scheme": "first"} if fallback else WHOLE["pre_tokenizer"]
    made = 0
    for value in variants({**WHOLE, "model": model, "pre_tokenizer": steps}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(value))
        metadata, problems = read_tokenizer(tmp_path, None)
        assert metadata is not None or problems
        made += metadata is not None
    assert made > 50


def test_no_value_of_a_file_that_is_another_is_a_traceback(tmp_path: Path) -> None:
    values: dict[str, Any] = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "merges": ["a b"]}
    values |= {"token_type": [1, 3, 4], "scores": [0.0, -1.0, -2.0], "bos_token_id": 1, "add_bos_token": True}
    more = {"chat_template": "x", "chat_templates": ["y"], "chat_template.y": "z"}
    made = 0
    for model in ("gpt2", "llama"):
        for changed in variants({**values, "model": model}):
            metadata = changed if isinstance(changed, dict) else {}
            metadata = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                made += bool(companions_of(metadata, tmp_path))
    for changed in variants(more):
        metadata = changed if isinstance(changed, dict) else {}
        metadata = {f"tokenizer.{key}": value for key, value in metadata.items()}
        base = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"]}
        made += bool(companions_of({**base, **metadata}, tmp_path))
    assert made > 50


@pytest.mark.parametrize("key", ["chat_template", "chat_template.y"])
def test_a_template_that_is_no_text_is_no_traceback(key: str, tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"]}
    metadata |= {"tokenizer.chat_templates": ["y"], f"tokenizer.{key}": "\udcff"}
    with pytest.warns(UserWarning, match=r"not all of tokenizer\.chat_template are text"):
        assert companions_of(metadata, tmp_path) == {}


def test_tokens_too_long_to_be_cut_in_all_ways_are_none(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["x" * (1 << 20)]}
    with pytest.warns(UserWarning, match="its tokens are too long"):
        assert companions_of(metadata, tmp_path) == {}
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {"model": {"type": "BPE", "byte_fallback": True, "vocab": {"x" * (1 << 20): 0}, "merges": []}}
        )
    )
    with pytest.raises(LossyConversionError, match="its tokens are too long"):
        written(folder, tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("added_tokens.json", {"b": "x"}, "no id or no text"),
        ("tokenizer_config.json", {"added_tokens_decoder": []}, None),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "added_tokens_decoder is no object"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "b"}}}, "no id or no text"),
        ("tokenizer_config.json", {"chat_template": 1}, "neither a text nor a list"),
        ("tokenizer_config.json", {"chat_template": [1]}, "has no name or no text"),
        ("tokenizer_config.json", {"bos_token": 5, "add_bos_token": "x"}, None),
        ("special_tokens_map.json", {"bos_token": {"content": 5}}, None),
        ("config.json", {"bos_token_id": 10**9, "eos_token_id": True}, None),
    ],
)
def test_a_bad_file_beside_it_is_named_or_says_nothing(
    name: str, content: Any, message: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(document({"a": 0}))
    (folder / name).write_text(json.dumps(content))
    if message is None:
        found = written(folder, tmp_path / "a.gguf")
        assert found["tokenizer.ggml.tokens"] == ["a"]
        assert not any(key.endswith("_id") for key in found)
    else:
        with pytest.raises(LossyConversionError, match=f"{name}.*{message}"):
            written(folder, tmp_path / "a.gguf")
