"""Whole models held against the files that llama.cpp's own converter makes of the same folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from transformers import AutoTokenizer

import ckptio
from golden import DATA

FOLDER = DATA / "llama_cpp"
FILES = sorted(path.name for path in FOLDER.glob("*.gguf"))
NOT_OURS = {
    # Guesses from the name of the folder, and a count in words.
    "general.name",
    "general.size_label",
    # Of files without a quantised tensor, nobody asks for it.
    "general.quantization_version",
    # What n_embd and n_head say.
    "llama.attention.key_length",
    "llama.attention.value_length",
    # llama.cpp has it for models that rank pairs of texts.
    "tokenizer.ggml.add_sep_token",
}


def told(name: str) -> tuple[str, dict[str, Any]]:
    """Return the folder of a file, and how to ask for its type."""
    kind, dtype, _ = name.split(".")
    return kind, {"dtype": dtype} if dtype != "q8_0" else {"dtype": "f32", "options": {"quantize": dtype}}


def tensors(path: Path) -> dict[str, tuple[Any, ...]]:
    return {
        each.name: (each.tensor_type, each.shape.tolist(), each.data.tobytes())
        for each in GGUFReader(path).tensors
    }


def fields(path: Path) -> dict[str, tuple[Any, ...]]:
    return {
        key: (field.types, field.contents())
        for key, field in GGUFReader(path).fields.items()
        if not key.startswith("GGUF.")
    }


def test_there_are_files_of_every_architecture() -> None:
    assert {name.split(".")[0] for name in FILES} == {"gpt2", "llama", "qwen2"}


@pytest.mark.parametrize("name", FILES)
def test_a_folder_becomes_the_file_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    kind, how = told(name)
    ckptio.convert(FOLDER / kind, tmp_path / name, layout="gguf", **how)
    assert tensors(tmp_path / name) == tensors(FOLDER / name)
    theirs, ours = fields(FOLDER / name), fields(tmp_path / name)
    assert {key: ours.get(key) for key in theirs.keys() - NOT_OURS} == {
        key: value for key, value in theirs.items() if key not in NOT_OURS
    }
    assert ours.keys() - theirs.keys() <= {f"{kind}.vocab_size", "ckptio.metadata"}


@pytest.mark.parametrize("name", [name for name in FILES if "q8_0" not in name])
def test_the_file_comes_back_as_the_folder(name: str, tmp_path: Path) -> None:
    kind, dtype, _ = name.split(".")
    ckptio.convert(
        FOLDER / name, f"{tmp_path}/hf/", checkpoint_format="safetensors", layout="hf", dtype="f32"
    )
    source, back = ckptio.load(FOLDER / kind), ckptio.load(tmp_path / "hf")
    for key, array in source.items():
        # GPT-2 was f32, and the converter rounded its matrices.
        expected = array.astype(back[key].dtype)
        if dtype == "f16" and array.ndim > 1 and "wpe" not in key:
            expected = expected.astype("f2").astype("f4")
        assert (back[key] == expected).all(), key
    text = "Alice's 12345 cats — “curiouser”, naïve 🐇!\n\n  and   more\t.  "
    original, again = (AutoTokenizer.from_pretrained(path) for path in (FOLDER / kind, tmp_path / "hf"))
    assert again(text)["input_ids"] == original(text)["input_ids"]
    assert again.eos_token == original.eos_token
    assert again.decode(again(text)["input_ids"]) == original.decode(original(text)["input_ids"])


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_converter_is_copied_to_the_byte(name: str, tmp_path: Path) -> None:
    ckptio.convert(FOLDER / name, tmp_path / name)
    assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()
