"""``general.file_type`` after conversions, in the table of the package gguf."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from gguf.constants import GGML_QUANT_SIZES

import ckptio
from ckptio_gguf.types import FILE_TYPES
from golden import DATA

KEY = "general.file_type"
VERSION = "general.quantization_version"


def written(path: Path, file_type: int | None, *kinds: str) -> Path:
    """Write a file with the package: of each type a tensor of 512 elements, and a small one of f32."""
    writer = GGUFWriter(path, "llama")
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    writer.add_tensor("norm.weight", np.ones(2048, "<f4"))
    for kind in kinds:
        if kind in ("F32", "F16", "F64"):
            array = np.ones((2, 256), f"<f{int(kind[1:]) // 8}")
            writer.add_tensor(kind, array)
        else:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
            blocks = np.ones((2, 256 // block * size), np.uint8)
            writer.add_tensor(kind, blocks, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def said(path: Path) -> dict[str, Any]:
    """Return what the package finds of the two keys; there is no sidecar that says otherwise."""
    assert not path.with_name(f"{path.name}.meta.json").exists()
    fields = GGUFReader(path).fields
    return {key: fields[key].contents() for key in (KEY, VERSION) if key in fields}


def test_the_values_are_those_of_the_package() -> None:
    names = {f"{each.name.removesuffix('_MOE')}": each.value for each in LlamaFileType}
    assert (
        names.items()
        >= {
            f"{'ALL' if name == 'F32' else 'MOSTLY'}_{name}": value for name, value in FILE_TYPES.items()
        }.items()
    )


@pytest.mark.parametrize(
    ("kinds", "before", "how", "after"),
    [
        (["F32"], LlamaFileType.ALL_F32, {"dtype": "f16"}, LlamaFileType.MOSTLY_F16),
        (["F32"], LlamaFileType.ALL_F32, {"dtype": "bf16"}, LlamaFileType.MOSTLY_BF16),
        (["F16"], LlamaFileType.MOSTLY_F16, {"dtype": "f32"}, LlamaFileType.ALL_F32),
        (["F32"], LlamaFileType.ALL_F32, {"options": {"quantize": "q8_0"}}, LlamaFileType.MOSTLY_Q8_0),
        (["F32"], LlamaFileType.ALL_F32, {"options": {"quantize": "q4_0"}}, LlamaFileType.MOSTLY_Q4_0),
        (["Q4_K", "Q6_K"], LlamaFileType.MOSTLY_Q4_K_M, {"dtype": "f32"}, LlamaFileType.ALL_F32),
        (
            ["Q4_K", "Q6_K"],
            LlamaFileType.MOSTLY_Q4_K_M,
            {"source_options": {"dequantize": "bf16"}},
            LlamaFileType.MOSTLY_BF16,
        ),
        # Carried blocks keep what was said, whatever else is left out or quantised.
        (["Q4_K", "Q6_K"], LlamaFileType.MOSTLY_Q4_K_S, {"drop": ["Q6_K"]}, LlamaFileType.MOSTLY_Q4_K_S),
        (
            ["Q4_K", "Q6_K", "F32"],
            LlamaFileType.MOSTLY_Q4_K_M,
            {"options": {"quantize": "q8_0"}},
            LlamaFileType.MOSTLY_Q4_K_M,
        ),
        # What is left is plain.
        (["F16", "Q4_K", "Q6_K"], LlamaFileType.MOSTLY_Q4_K_M, {"drop": ["Q*"]}, LlamaFileType.MOSTLY_F16),
        # The table has no value for f64, and the old one is not true.
        (["F32"], LlamaFileType.ALL_F32, {"dtype": "f64"}, None),
        # A file that did not say keeps silent, but for what llama.cpp wants of quantised ones.
        (["F32"], None, {"dtype": "f16"}, None),
        (["F32"], None, {"options": {"quantize": "q8_0"}}, LlamaFileType.MOSTLY_Q8_0),
    ],
)
def test_the_type_of_the_file_is_that_of_most_elements(
    kinds: list[str], before: int | None, how: dict[str, Any], after: int | None, tmp_path: Path
) -> None:
    source = written(tmp_path / "a.gguf", before, *kinds)
    ckptio.convert(source, tmp_path / "b.gguf", **how)
    assert said(tmp_path / "b.gguf") == ({VERSION: 2} if after is None else {KEY: after, VERSION: 2})
    with ckptio.open(tmp_path / "b.gguf") as checkpoint:
        assert "mostly" not in checkpoint.metadata.get("gguf", {})


def test_most_elements_count_and_not_most_tensors(tmp_path: Path) -> None:
    tensors = {f"half.{index}": np.ones((2, 16), "<f2") for index in range(5)}
    tensors["large"] = np.ones((16, 16), "<f4")
    ckptio.save(tensors, tmp_path / "a.gguf", metadata={KEY: 1})
    assert said(tmp_path / "a.gguf") == {KEY: LlamaFileType.ALL_F32}


def test_a_cast_on_the_way_through_another_format_counts(tmp_path: Path) -> None:
    source = written(tmp_path / "a.gguf", LlamaFileType.MOSTLY_Q8_0, "Q8_0")
    ckptio.convert(source, tmp_path / "a.safetensors", dtype="f16")
    ckptio.convert(tmp_path / "a.safetensors", tmp_path / "b.gguf")
    assert said(tmp_path / "b.gguf") == {KEY: LlamaFileType.MOSTLY_F16, VERSION: 2}


@pytest.mark.parametrize("file_type", [None, 0, 7, 1024, 12345])
def test_a_file_that_is_only_copied_keeps_even_what_is_wrong(file_type: int | None, tmp_path: Path) -> None:
    source = written(tmp_path / "a.gguf", file_type, "F32", "F16", "F64")
    ckptio.convert(source, tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == source.read_bytes()
    with ckptio.open(source) as checkpoint:
        # Of 512 elements each, the first.
        wrong = file_type not in (None, LlamaFileType.ALL_F32)
        assert checkpoint.metadata.get("gguf") == ({"mostly": "F32"} if wrong else None)
    ckptio.convert(source, tmp_path / "c.gguf", dtype="f16")
    if file_type is not None:
        assert said(tmp_path / "c.gguf")[KEY] == LlamaFileType.MOSTLY_F16


@pytest.mark.parametrize(("dtype", "file_type"), [("f32", 0), ("f16", 1), ("bf16", 32)])
def test_a_model_that_is_made_for_llama_cpp_says_its_type(dtype: str, file_type: int, tmp_path: Path) -> None:
    folder = DATA / "golden" / "hf" / "gpt2_fp32_single"
    ckptio.convert(folder, tmp_path / "a.gguf", layout="gguf", dtype=dtype)
    assert said(tmp_path / "a.gguf") == {KEY: file_type}


def test_a_model_of_llama_cpp_without_its_type_is_copied_without(tmp_path: Path) -> None:
    folder = DATA / "golden" / "hf" / "gpt2_fp32_single"
    ckptio.convert(folder, tmp_path / "made.gguf", layout="gguf")
    reader = GGUFReader(tmp_path / "made.gguf")
    writer = GGUFWriter(tmp_path / "a.gguf", "gpt2")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.")):
            writer.add_key_value(key, field.contents(), field.types[0])
    for each in reader.tensors:
        writer.add_tensor(each.name, each.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ckptio.convert(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == (tmp_path / "a.gguf").read_bytes()
    ckptio.convert(tmp_path / "a.gguf", tmp_path / "c.gguf", layout="gguf", dtype="f16")
    assert said(tmp_path / "c.gguf") == {KEY: LlamaFileType.MOSTLY_F16}


def test_a_hyperparameter_that_is_given_is_not_undone_by_a_sidecar(tmp_path: Path) -> None:
    ckptio.convert(DATA / "golden" / "gguf" / "mixed.gguf", tmp_path / "a.gguf", config={"block_size": 8})
    assert os.listdir(tmp_path) == ["a.gguf"]
    with ckptio.open(tmp_path / "a.gguf") as checkpoint:
        assert checkpoint.metadata["gpt2.context_length"] == checkpoint.metadata["config"]["block_size"] == 8
