"""Tokenizers out of GGUF files: transformers loads them, and they do what the original does."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from gguf import GGUFWriter, SpecialVocab
from transformers import AutoTokenizer

import ckptio
from trained import TEMPLATE, TEXTS, byte_level, pieces, written

Metadata = dict[str, Any]


def back(path: Path, folder: Path) -> Any:
    """Put the files that a GGUF file makes into a folder; return what transformers loads there."""
    folder.mkdir()
    with ckptio.open(path) as checkpoint:
        made = checkpoint.companions()
    assert set(made) == {"tokenizer.json", "tokenizer_config.json"}
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["gpt2", "llama3", "qwen2"])
@pytest.mark.parametrize("more", [0, 3])
def test_a_byte_level_tokenizer_comes_back(kind: str, more: int, tmp_path: Path) -> None:
    fast = byte_level(kind, tmp_path / "hf")
    written(tmp_path / "hf", tmp_path / "a.gguf", len(fast) + more)
    found = back(tmp_path / "a.gguf", tmp_path / "back")
    for text in TEXTS:
        ids = fast.encode(text)
        assert found.encode(text) == ids, text
        assert found.decode(ids) == fast.decode(ids)
        assert found.decode(ids, skip_special_tokens=True) == fast.decode(ids, skip_special_tokens=True)
    assert found("one", "two")["input_ids"] == fast("one", "two")["input_ids"]
    assert found.get_vocab() == fast.get_vocab()
    assert found.special_tokens_map == fast.special_tokens_map
    assert found.chat_template == TEMPLATE
    added = {number: (token.content, token.special) for number, token in fast.added_tokens_decoder.items()}
    assert {
        number: (token.content, token.special) for number, token in found.added_tokens_decoder.items()
    } == added


@pytest.mark.parametrize("files", [1, 2])
def test_a_tokenizer_that_the_package_wrote_comes_back(files: int, tmp_path: Path) -> None:
    fast = byte_level("qwen2", tmp_path / "hf")
    writer = GGUFWriter(tmp_path / "a.gguf", "qwen2", split_max_tensors=1 if files == 2 else 0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([str(fast.convert_ids_to_tokens(number)) for number in range(len(fast))])
    types = {number: 3 if token.special else 4 for number, token in fast.added_tokens_decoder.items()}
    writer.add_token_types([types.get(number, 1) for number in range(len(fast))])
    SpecialVocab(tmp_path / "hf", load_merges=True).add_to_gguf(writer)
    for name in ("one", "two"):
        writer.add_tensor(name, np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(tmp_path.glob("*.gguf"))
    assert len(paths) == files
    found = back(paths[0], tmp_path / "back")
    assert [found.encode(text) for text in TEXTS] == [fast.encode(text) for text in TEXTS]
    assert found.special_tokens_map == fast.special_tokens_map
    assert found.chat_template == TEMPLATE


def test_special_tokens_among_the_others_keep_their_ids(tmp_path: Path) -> None:
    fast = byte_level("gpt2", tmp_path / "hf")
    path = tmp_path / "hf" / "tokenizer.json"
    content = json.loads(path.read_text())
    # Ids as of a tokenizer that was trained with its special token: that is first, and in the vocabulary.
    vocab = {"<|endoftext|>": 0} | {text: number + 1 for text, number in content["model"]["vocab"].items()}
    content["model"]["vocab"] = vocab
    content["added_tokens"][0]["id"] = 0
    path.write_text(json.dumps(content))
    wanted = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert wanted.convert_tokens_to_ids("<|endoftext|>") == 0
    written(tmp_path / "hf", tmp_path / "a.gguf", len(fast))
    found = back(tmp_path / "a.gguf", tmp_path / "back")
    assert found.get_vocab() == wanted.get_vocab()
    assert [found.encode(text) for text in TEXTS] == [wanted.encode(text) for text in TEXTS]


def ids_of(model: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
    """Return the first token, and what sentencepiece makes of a text between special tokens."""
    return [model.bos_id(), *model.encode(text)]


@pytest.mark.parametrize("prefix", [True, False])
def test_a_tokenizer_with_scores_comes_back(prefix: bool, tmp_path: Path) -> None:
    model = pieces(tmp_path / "sp", add_dummy_prefix=prefix)
    written(tmp_path / "sp", tmp_path / "a.gguf", model.vocab_size() + 2)
    found = back(tmp_path / "a.gguf", tmp_path / "back")
    for text in TEXTS:
        # Special tokens are none to sentencepiece, and to it nothing is no text.
        if "<" not in text and text:
            assert found.encode(text) == ids_of(model, text), text
            assert found.decode(found.encode(text), skip_special_tokens=True) == text
    assert (found.bos_token_id, found.eos_token_id, found.unk_token_id) == (1, 2, 0)
    assert found.encode("a</s>")[-1] == model.eos_id()


def minimal(**values: Any) -> Metadata:
    """Return the metadata of a BPE over bytes of three tokens."""
    found = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "merges": ["a b"], **values}
    return {f"tokenizer.ggml.{key}": value for key, value in found.items() if value is not None}


def saved(path: Path, metadata: Metadata) -> dict[str, bytes]:
    ckptio.save({"x": np.zeros(32, np.float32)}, path, metadata=metadata)
    with ckptio.open(path) as checkpoint:
        return dict(checkpoint.companions())


def test_what_a_file_does_not_say_is_what_llama_cpp_takes(tmp_path: Path) -> None:
    made = saved(tmp_path / "a.gguf", minimal())
    config = json.loads(made["tokenizer_config.json"])
    assert "bos_token" not in config
    assert "model_max_length" not in config
    tokens = json.loads(made["tokenizer.json"])
    assert tokens["model"]["vocab"] == {"a": 0, "b": 1, "ab": 2}
    assert tokens["added_tokens"] == []


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (minimal(pre=None), "pre-tokenizer None"),
        (minimal(pre="of tomorrow"), "pre-tokenizer 'of tomorrow'"),
        (minimal(model="bert"), "the kind 'bert'"),
        (minimal(merges=None), "no list of texts tokenizer.ggml.merges"),
        (minimal(merges=["a c"]), "a merge is not of tokens"),
        (minimal(merges=["ab"]), "a merge is not of tokens"),
        (minimal(tokens=[1, 2, 3]), "no list of texts tokenizer.ggml.tokens"),
        (minimal(tokens=["a", "b", "a"]), "two tokens have the same text"),
        (minimal(token_type=[1, 1]), "not as many as the tokens"),
        (minimal(token_type=["a", "b", "c"]), "no numbers"),
        (minimal(tokens=["a", "b", b"\xff".decode(errors="surrogateescape")]), "not all of"),
    ],
)
def test_what_cannot_be_made_is_left_out_and_said(metadata: Metadata, message: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"a.gguf: no tokenizer.json is made of its tokens: .*{message}"):
        assert saved(tmp_path / "a.gguf", metadata) == {}


@pytest.mark.parametrize("metadata", [{}, {"tokenizer.ggml.model": "no_vocab"}])
def test_a_file_without_tokens_makes_none(metadata: Metadata, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert saved(tmp_path / "a.gguf", metadata) == {}


def test_chat_templates_and_the_length_of_the_context_come_back(tmp_path: Path) -> None:
    templates = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool": "b"}
    more = {"tokenizer.chat_templates": ["tool"], "general.architecture": "x", "x.context_length": 77}
    config = json.loads(saved(tmp_path / "a.gguf", minimal() | templates | more)["tokenizer_config.json"])
    assert config["chat_template"] == [
        {"name": "default", "template": "a"},
        {"name": "tool", "template": "b"},
    ]
    assert config["model_max_length"] == 77
