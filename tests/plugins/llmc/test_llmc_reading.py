"""What else a file may hold: padding, biases, other header words; and everything that is refused."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckptio
from ckptio import CorruptCheckpointError, UnsupportedError, raised_limits
from golden import GOLDEN, all_golden, golden
from llmc_files import FORMAT, bits, gpt2, memory, patched, written

GPT2 = "llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin"
MASTER = "llmc_llama3/llama3_L4H4KV2C16V96T16_masterlayout_fp32.bin"
MASTER_BF16 = "llmc_llama3/llama3_L4H4KV2C16V96T16_masterlayout_bf16.bin"
BRANCH = "llmc_llama3/llama3_L4H4KV2C16V96T16_branchlayout_fp32.bin"
INFINITRAIN = "llmc_llama3/llama3_L4H4KV2C16V96T16_infinitrainheader_fp32.bin"
Make = Callable[[bytes], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(data: bytes) -> Path:
        path = tmp_path / "made.bin"
        path.write_bytes(data)
        return path

    return made


OTHERS = {
    "llmc_gpt2/*debug_state.bin": "debug state of GPT-2",
    "llmc_llama3/*debug_state.bin": "debug state of LLaMA-3",
    "llmc_state/*/state_*.bin": "optimizer state",
    "tokens/*gpt2*.bin": "GPT-2 tokens",
    "tokens/*llama3*.bin": "LLaMA-3 tokens",
}


@pytest.mark.parametrize(("pattern", "what"), OTHERS.items())
def test_llmcs_other_files_are_refused_by_name(pattern: str, what: str) -> None:
    for path in all_golden(pattern):
        with pytest.raises(UnsupportedError, match=f"not a model but .*{what}"):
            FORMAT.open(path, {})


def test_all_of_llmcs_files_are_detected_as_its_own() -> None:
    found = [path for folder in ("llmc_*", "tokens") for path in GOLDEN.glob(f"{folder}/**/*.bin")]
    assert len(found) > 10
    assert all(path.read_bytes()[:4] in FORMAT.magic for path in found)


def test_a_tokenizer_and_old_versions_are_refused_by_name(make: Make) -> None:
    data = golden(GPT2).read_bytes()
    with pytest.raises(UnsupportedError, match="tokenizer"):
        FORMAT.open(make(patched(data, {0: 20240328})), {})
    for version in (1, 2):
        with pytest.raises(UnsupportedError, match=f"version {version} of llm.c's GPT-2.*train_gpt2.py"):
            FORMAT.open(make(patched(data, {1: version})), {})


WORDS = [
    (GPT2, 0, 20240325, "not an llm.c model"),
    (GPT2, 1, 4, "version 4 found, 3 .f32. or 5 .bf16. expected"),
    (GPT2, 2, 0, "block_size.*0 found"),
    (GPT2, 3, -97, "vocab_size.*-97 found"),
    (GPT2, 4, 0, "n_layer.*0 found"),
    (GPT2, 5, 3, "n_embd 32 is not divisible by n_head 3"),
    (GPT2, 6, 0, "n_embd.*0 found"),
    (GPT2, 7, 256, "padded_vocab_size.*256 found, 128 expected"),
    (MASTER, 1, 7, "version 7 found"),
    (MASTER, 5, 0, "n_head.*0 found"),
    (MASTER, 6, 3, "n_head 4 is not divisible by n_kv_head 3"),
    (MASTER, 8, -1, "ffn_dim_multiplier.*-1 is negative"),
    (MASTER, 9, 0, "multiple_of.*0 found"),
    (MASTER, 10, 1, "norm_eps"),
    (MASTER, 12, 2, "use_scaled_rope.*2 found, true or false expected"),
    (MASTER, 13, 0, "max_gen_batch_size.*0 found"),
    (MASTER, 14, -3, "version.*-3.1"),
    (BRANCH, 8, -8, "multiple_of.*-8 found"),
    (BRANCH, 256, bits(math.nan), "ffn_dim_multiplier.*nan found"),
    (BRANCH, 257, bits(-1.0), "norm_eps.*-1.0 found"),
    (BRANCH, 258, bits(math.inf), "rope_theta.*inf found"),
    (INFINITRAIN, 8, bits(0.0), "ffn_dim_multiplier.*0.0 found"),
    (INFINITRAIN, 10, bits(math.nan), "norm_eps.*nan found"),
]


@pytest.mark.parametrize(("name", "word", "value", "what"), WORDS)
def test_a_header_word_that_cannot_be_meant_is_named(
    name: str, word: int, value: int, what: str, make: Make
) -> None:
    path = make(patched(golden(name).read_bytes(), {word: value}))
    with pytest.raises(CorruptCheckpointError, match=what) as caught:
        FORMAT.open(path, {})
    assert caught.value.offset == 4 * word


def test_infinitrains_header_is_for_f32_only(make: Make) -> None:
    path = make(patched(golden(MASTER_BF16).read_bytes(), {11: bits(500000.0)}))
    with pytest.raises(CorruptCheckpointError, match=r"version 5 found, 3 \(f32\) expected") as caught:
        FORMAT.open(path, {})
    assert caught.value.offset == 4


@pytest.mark.parametrize("name", [GPT2, BRANCH, INFINITRAIN])
def test_a_size_that_the_header_does_not_imply_is_refused_with_both(name: str, make: Make) -> None:
    data = golden(name).read_bytes()
    for wrong in (data[:-1], data[:-4], data + b"\0", data + b"\0\0\0\0", data[:2050]):
        message = rf"{len(wrong)} bytes found, {len(data)} expected by its header"
        with pytest.raises(CorruptCheckpointError, match=message) as caught:
            FORMAT.open(make(wrong), {})
        assert caught.value.offset == min(len(wrong), len(data))


def test_a_master_file_with_a_byte_more_or_less_is_refused(make: Make) -> None:
    data = golden(MASTER).read_bytes()
    for wrong in (data[:-1], data[:-4], data + b"\0", data + b"\0\0\0\0", data[:1024]):
        with pytest.raises(CorruptCheckpointError, match=f"{len(wrong)} bytes found, .* in steps of"):
            FORMAT.open(make(wrong), {})


def test_a_master_file_cut_by_whole_widths_is_refused_outside_of_what_its_header_allows(make: Make) -> None:
    data = golden(MASTER).read_bytes()
    n_layer, n_embd, multiple_of = 4, 16, 8
    each = 3 * n_layer * n_embd * 4
    # int(8 * 16 / 3) = 42; 42 to 83 raised to a multiple of 8 is 48 to 88; the file has 56.
    legal = (48, 56, 88)
    for width in (40, 47, *legal, 52, 96):
        path = make((data + bytes(100 * each))[: len(data) + (width - 56) * each])
        if width in legal:
            with FORMAT.open(path, {}) as checkpoint:
                spec = checkpoint.specs["transformer.h.0.mlp.c_fc.weight"]
            assert spec.shape == (width, n_embd)
        else:
            with pytest.raises(CorruptCheckpointError, match=f"in steps of {multiple_of * each} expected"):
                FORMAT.open(path, {})


def test_padding_that_is_not_zero_is_a_loss(make: Make) -> None:
    data = bytearray(golden(GPT2).read_bytes())
    row = 32 * 4
    data[1024 + 97 * row + 3] = 0x80  # -0.0 in the first padding row: a bit that would be lost
    data[1024 + 127 * row + 5] = 1
    data[1024 + 127 * row + 9] = 1
    with FORMAT.open(make(bytes(data)), {}) as checkpoint:
        (problem,) = checkpoint.omissions()
        assert checkpoint.specs["transformer.wte.weight"].shape == (97, 32)
    assert problem.where == "transformer.wte.weight"
    assert problem.what.startswith("2 of 31 padding rows")
    assert problem.allow == "padding"


def test_biases_that_are_not_zero_are_a_loss(make: Make) -> None:
    data = bytearray(golden(BRANCH).read_bytes())
    # The last block is ln_f.bias of 16, before it ln_f.weight, before that mlp.c_proj.bias of 4 layers.
    data[-1] = 0x80
    data[-4 * (16 + 16 + 2 * 16) + 2] = 1
    with FORMAT.open(make(bytes(data)), {}) as checkpoint:
        found = {problem.where: problem for problem in checkpoint.omissions()}
    assert set(found) == {"transformer.ln_f.bias", "transformer.h.2.mlp.c_proj.bias"}
    assert all(each.what.startswith("1 of 16 ") and each.allow == "biases" for each in found.values())


def test_padding_is_lost_only_when_that_is_allowed(make: Make, tmp_path: Path) -> None:
    data = bytearray(golden(GPT2).read_bytes())
    data[1024 + 100 * 32 * 4] = 1
    source, target = make(bytes(data)), tmp_path / "out.ckpt"
    with pytest.raises(ckptio.LossyConversionError, match="--allow padding"):
        ckptio.convert(source, target)
    assert not target.exists()
    ckptio.convert(source, target, allow=["padding"])
    assert ckptio.load(target)["transformer.wte.weight"].shape == (97, 32)


# M2: a vocabulary that needs no padding, and a padded size that is also the block size or the width.
@pytest.mark.parametrize(("vocab", "block", "n_embd"), [(128, 4, 8), (5, 128, 8), (3, 4, 128), (129, 256, 8)])
def test_exactly_the_embedding_is_padded(vocab: int, block: int, n_embd: int, tmp_path: Path) -> None:
    tensors = gpt2(1, n_embd, vocab, block)
    data = written(memory(tensors, n_head=2), tmp_path)
    padded = math.ceil(vocab / 128) * 128
    per_layer = 12 * n_embd * n_embd + 13 * n_embd
    assert len(data) == 1024 + 4 * (padded * n_embd + block * n_embd + per_layer + 2 * n_embd)
    start, end = 1024 + 4 * vocab * n_embd, 1024 + 4 * padded * n_embd
    assert data[start:end] == bytes(end - start)
    assert data[end : end + 4 * block * n_embd] == tensors["transformer.wpe.weight"].tobytes()
    with FORMAT.open(tmp_path / "written.bin", {}) as checkpoint:
        for name in checkpoint.names():
            assert np.array_equal(checkpoint.read(name), tensors[name]), name


def test_unknown_header_words_come_back(make: Make, tmp_path: Path) -> None:
    # llm.c's .cu writer leaves the unused words of the float header uninitialised.
    data = patched(golden(BRANCH).read_bytes(), {200: -5, 259: 0x7FC00001, 511: -1})
    with FORMAT.open(make(data), {}) as checkpoint:
        assert written(checkpoint, tmp_path) == data
    data = patched(golden(GPT2).read_bytes(), {255: 123456})
    with FORMAT.open(make(data), {}) as checkpoint:
        assert written(checkpoint, tmp_path) == data


def test_a_header_that_claims_everything_costs_nothing(make: Make) -> None:
    huge = dict.fromkeys(range(2, 8), 2**31 - 1)
    for name, heads in ((GPT2, {5: 1, 7: 2**31 - 128, 3: 2**31 - 200}), (MASTER, {5: 1, 6: 1})):
        began = time.monotonic()
        with pytest.raises(CorruptCheckpointError, match="cut short"):
            FORMAT.open(make(patched(golden(name).read_bytes(), huge | heads)), {})
        assert time.monotonic() - began < 1


def test_the_number_of_tensors_is_bounded() -> None:
    with (
        raised_limits(tensors=8 * 28 - 1),
        pytest.raises(CorruptCheckpointError, match="28 tensors .* limit of 27"),
    ):
        FORMAT.open(golden(GPT2), {})
    with raised_limits(tensors=8 * 28):
        FORMAT.open(golden(GPT2), {}).close()


def test_a_debug_state_that_is_no_debug_state_is_a_damaged_model(make: Make) -> None:
    data = golden("llmc_llama3/llama3_L4H4KV2C16V96T16_masterlayout_debug_state.bin").read_bytes()
    with pytest.raises(CorruptCheckpointError):
        FORMAT.open(make(data[:1024]), {})
    with pytest.raises(CorruptCheckpointError, match="ends inside the header"):
        FORMAT.open(make(data[:1023]), {})
