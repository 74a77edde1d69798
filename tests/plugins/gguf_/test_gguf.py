"""GGUF beside the package gguf, which is the judge of what a file holds and how it is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

import ckptio
from ckptio import LossyConversionError, UnsupportedError
from ckptio_gguf.types import BY_ID, QUANTIZERS
from gguf_files import raw
from golden import all_golden, golden, golden_id

MIXED = golden("gguf/mixed.gguf")
DECODED = [each for each in BY_ID.values() if each.dtype is None and each.decoded]


def blocks_of(name: str, rows: int = 3, per_row: int = 2) -> np.ndarray[Any, Any]:
    """Return rows of random blocks: every byte pattern is one that a file can hold."""
    size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    return np.random.default_rng(size).integers(0, 256, (rows, per_row * size), np.uint8)


def written(path: Path, tensors: Mapping[str, tuple[np.ndarray[Any, Any], str | None]]) -> Path:
    """Write a file with the package; a tensor comes with the name of its type, if it is quantised."""
    writer = GGUFWriter(path, "gpt2")
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=GGMLQuantizationType[kind] if kind else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_types_are_those_of_the_package() -> None:
    assert {(each.id, each.name) for each in BY_ID.values()} == {(t.value, t.name) for t in GGML_QUANT_SIZES}
    for kind, (block, size) in GGML_QUANT_SIZES.items():
        assert (BY_ID[kind].block, BY_ID[kind].nbytes) == (block, size)


@pytest.mark.parametrize("name", [each.name for each in BY_ID.values() if each.dtype is None])
def test_a_type_is_decoded_where_the_package_decodes_it(name: str, tmp_path: Path) -> None:
    blocks = blocks_of(name)
    kind = GGMLQuantizationType[name]
    path = written(tmp_path / "a.gguf", {"w": (blocks, name)})
    try:
        with np.errstate(all="ignore"):
            truth = dequantize(blocks, kind)
    except NotImplementedError:
        with pytest.raises(UnsupportedError, match=f"w: {name} has no decoder"):
            ckptio.open(path)
        return
    with ckptio.open(path) as checkpoint:
        assert checkpoint.metadata["gguf"]["quantized"] == {"w": name}
        assert checkpoint.specs["w"].shape == truth.shape
        assert checkpoint.read("w").tobytes() == truth.astype("<f4").tobytes()
        for most in (1, 4, 100, 1 << 20):
            chunks = [bytes(chunk) for chunk in checkpoint.chunks("w", most)]
            assert b"".join(chunks) == truth.astype("<f4").tobytes()
            assert max(map(len, chunks)) <= max(4, most)


@pytest.mark.parametrize("path", all_golden("gguf/*.gguf"), ids=golden_id)
def test_a_file_that_is_only_copied_is_the_same_file(path: Path, tmp_path: Path) -> None:
    ckptio.convert(path, tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == path.read_bytes()


def test_blocks_are_carried_under_other_tensors_and_metadata(tmp_path: Path) -> None:
    ckptio.convert(MIXED, tmp_path / "a.gguf", drop=["t.f32", "t.i*"], config={"n_head": 2})
    kept = {name: each for name, each in raw(MIXED).items() if name not in ("t.f32", "t.i32", "t.i8")}
    assert raw(tmp_path / "a.gguf") == kept


@pytest.mark.parametrize("how", ["--dtype", "-O dequantize"])
def test_blocks_are_not_carried_where_other_elements_are_asked_for(how: str, tmp_path: Path) -> None:
    if how == "--dtype":
        ckptio.convert(MIXED, tmp_path / "a.gguf", dtype="f32")
    else:
        ckptio.convert(MIXED, tmp_path / "a.gguf", source_options={"dequantize": "f32"})
    with np.load(golden("gguf/mixed.truth.npz")) as truth:
        kind, dimensions, data = raw(tmp_path / "a.gguf")["t.q4_0"]
        assert (kind, dimensions, data) == ("F32", [64, 4], truth["t.q4_0"].tobytes())
    with ckptio.open(tmp_path / "a.gguf") as checkpoint:
        assert "quantized" not in checkpoint.metadata["gguf"]


@pytest.mark.parametrize(("dtype", "numpy"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_quantised_tensors_are_read_as_the_dtype_that_is_asked_for(dtype: str, numpy: Any) -> None:
    found = ckptio.load(MIXED, options={"dequantize": dtype})
    with np.load(golden("gguf/mixed.truth.npz")) as truth:
        for name in ("t.q8_0", "t.q4_0", "t.q4_1", "t.q5_0", "t.q5_1"):
            assert found[name].dtype == numpy
            assert found[name].tobytes() == truth[name].astype(numpy).tobytes()
        assert found["t.f32"].dtype == np.float32


def test_what_f16_cannot_hold_is_refused_with_the_remedy(tmp_path: Path) -> None:
    block = np.concatenate([np.array([60000.0], "<f2").view(np.uint8), np.full(32, 127, np.uint8)])
    path = written(tmp_path / "a.gguf", {"w": (block.reshape(1, -1), "Q8_0")})
    with pytest.raises(UnsupportedError, match="w: has values beyond.*-O dequantize=f32"):
        ckptio.load(path, options={"dequantize": "f16"})


@pytest.mark.parametrize("alignment", [None, 8, 4096])
def test_a_file_is_laid_out_as_the_package_does_it(alignment: int | None, tmp_path: Path) -> None:
    tensors: dict[str, Any] = {
        "odd": np.arange(7, dtype="<f4"),
        "half": np.arange(6, dtype="<f2").reshape(2, 3),
        "cube": np.arange(24, dtype="<f8").reshape(2, 3, 4),
        "bytes": np.arange(5, dtype="i1"),
        "long": np.array([[2**40]], "<i8"),
    }
    writer = GGUFWriter(tmp_path / "theirs.gguf", "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_string("general.name", "Gödel")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", float(np.float32(1e-5)))
    writer.add_float64("precise", 0.1)
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_array("tokenizer.ggml.tokens", ["a", "", "ü"])
    writer.add_array("tokenizer.ggml.token_type", [1, 1, -3])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0])
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = {
        "general.name": "Gödel",
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
        "precise": 0.1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.tokens": ["a", "", "ü"],
        "tokenizer.ggml.token_type": [1, 1, -3],
        "tokenizer.ggml.scores": [0.5, -1.0],
    }
    options = {"alignment": str(alignment)} if alignment else None
    ckptio.save(tensors, tmp_path / "ours.gguf", metadata=metadata, options=options)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_tensors_are_quantised_as_the_package_does_it(kind: str, tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((5, 512)).astype("<f4")
    tensors = {"w": values, "norm": values[0].copy(), "position_embd.weight": values.copy()}
    ckptio.save(tensors, tmp_path / "a.gguf", options={"quantize": kind})
    found, wanted = raw(tmp_path / "a.gguf"), GGMLQuantizationType[kind.upper()]
    assert found["w"] == (wanted.name, [512, 5], quantize(values, wanted).tobytes())
    assert found["norm"][0] == found["position_embd.weight"][0] == "F32"
    fields = GGUFReader(tmp_path / "a.gguf").fields
    assert fields["general.quantization_version"].contents() == gguf.GGML_QUANT_VERSION
    assert fields["general.file_type"].contents() in {
        each.value for each in gguf.LlamaFileType if each.name.startswith(f"MOSTLY_{kind.upper()}")
    }


def test_a_report_says_what_was_quantised_and_into_what(tmp_path: Path) -> None:
    values = np.ones((2, 64), "<f4")
    source = written(
        tmp_path / "a.gguf",
        {"w": (values, None), "n": (values[0], None), "q": (np.zeros((3, 288), np.uint8), "Q4_K")},
    )
    report = ckptio.convert(source, tmp_path / "b.gguf", options={"quantize": "q8_0"})
    assert {name: kind for name, (kind, *_) in raw(tmp_path / "b.gguf").items()} == {
        "w": "Q8_0",
        "n": "F32",
        "q": "Q4_K",
    }
    assert {fate.name: (fate.actions, fate.detail) for fate in report.fates if fate.kind == "tensor"} == {
        "w": (("quantised",), "Q8_0"),
        "n": (("copied",), ""),
        "q": (("copied",), ""),
    }
    report = ckptio.convert(source, tmp_path / "c.gguf", dtype="f32", options={"quantize": "q8_0"})
    assert report.count("quantised") == 2


def test_quantising_what_has_another_type_already_is_refused_and_not_left_undone(tmp_path: Path) -> None:
    source = written(
        tmp_path / "a.gguf", {"n": (np.ones(32, "<f4"), None), "q": (np.zeros((3, 288), np.uint8), "Q4_K")}
    )
    with pytest.raises(UnsupportedError, match="quantize=q8_0: what has rows is Q4_K already: --dtype f32"):
        ckptio.convert(source, tmp_path / "b.gguf", options={"quantize": "q8_0"})
    ckptio.convert(source, tmp_path / "b.gguf", dtype="f32", options={"quantize": "q8_0"})
    ckptio.convert(tmp_path / "b.gguf", tmp_path / "c.gguf", options={"quantize": "q8_0"})
    assert raw(tmp_path / "c.gguf")["q"] == raw(tmp_path / "b.gguf")["q"]
    assert raw(tmp_path / "c.gguf")["q"][0] == "Q8_0"


def test_q8_0_is_within_its_error_bound(tmp_path: Path) -> None:
    values = np.random.default_rng(2).standard_normal((64, 256)).astype("<f4")
    ckptio.save({"w": values}, tmp_path / "a.gguf", options={"quantize": "q8_0"})
    read = ckptio.load(tmp_path / "a.gguf")["w"]
    # Half a step of rounding, and 127 steps of which each is off by half a unit of f16's last place.
    step = np.abs(values.reshape(-1, 32)).max(axis=1) / 127
    bound = step * (0.5 + 127 * 2.0**-11) * (1 + 1e-6)
    errors = np.abs(read - values).reshape(-1, 32).max(axis=1)
    assert (errors <= bound).all()
    assert errors.max() > 0


def test_rows_that_are_no_whole_blocks_are_refused_or_named(tmp_path: Path) -> None:
    tensors = {"whole": np.ones((2, 64), "<f4"), "odd": np.arange(14, dtype="<f4").reshape(2, 7)}
    ckptio.save(tensors, tmp_path / "plain.gguf")
    with pytest.raises(LossyConversionError, match=r"odd: rows of 7 .* 32 of Q8_0; it stays f32") as caught:
        ckptio.convert(tmp_path / "plain.gguf", tmp_path / "a.gguf", options={"quantize": "q8_0"})
    assert [each.where for each in caught.value.problems] == ["odd"]
    assert not (tmp_path / "a.gguf").exists()
    report = ckptio.convert(
        tmp_path / "plain.gguf", tmp_path / "a.gguf", options={"quantize": "q8_0"}, allow=["fallback"]
    )
    assert any("odd: rows of 7" in loss for loss in report.losses)
    found = raw(tmp_path / "a.gguf")
    assert found["whole"][0] == "Q8_0"
    assert found["odd"] == ("F32", [7, 2], tensors["odd"].tobytes())


def test_only_finite_f32_is_quantised(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="w: f16 is not quantised: --dtype f32"):
        ckptio.save({"w": np.ones((1, 32), "<f2")}, tmp_path / "a.gguf", options={"quantize": "q8_0"})
    values = np.ones((1, 32), "<f4")
    values[0, 3] = np.nan
    with pytest.raises(UnsupportedError, match="w: has values that are not finite"):
        ckptio.save({"w": values}, tmp_path / "a.gguf", options={"quantize": "q8_0"})
    assert list(tmp_path.iterdir()) == []


def test_only_quantised_tensors_need_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"Q8_0 need the package gguf: pip install 'ckptio\[gguf\]'"):
        ckptio.open(MIXED)
    tensors = {"w": np.ones((1, 32), "<f4")}
    with pytest.raises(UnsupportedError, match="quantising needs the package gguf"):
        ckptio.save(tensors, tmp_path / "a.gguf", options={"quantize": "q8_0"})
    ckptio.save(tensors, tmp_path / "a.gguf")
    assert ckptio.load(tmp_path / "a.gguf")["w"].tobytes() == tensors["w"].tobytes()


def test_more_dimensions_than_ggml_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="w: 5 dimensions are more than the 4 of ggml"):
        ckptio.save({"w": np.ones((1, 1, 1, 1, 2), "<f4")}, tmp_path / "a.gguf")
