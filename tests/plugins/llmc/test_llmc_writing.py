"""What a file cannot hold: each is refused before anything is written, and all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ckptio
from ckptio import MemoryCheckpoint
from golden import golden
from llmc_files import FORMAT, config_of, gpt2, memory, problems, truth, words, written

LLAMA = golden("llmc_llama3/llama3_L4H4KV2C16V96T16_masterlayout_fp32.bin")
WTE, HEAD = "transformer.wte.weight", "lm_head.weight"


def llama(**changes: Any) -> MemoryCheckpoint:
    """Return LLaMA-3 with its config, changed; None leaves a key out."""
    config = {**config_of(LLAMA), **changes}
    return memory(truth(LLAMA), **{key: value for key, value in config.items() if value is not None})


def test_a_head_that_differs_is_refused_with_the_largest_difference() -> None:
    tensors = gpt2()
    tensors[HEAD][4, 7] += np.float32(0.5)
    tensors[HEAD][0, 0] += np.float32(0.25)
    (line,) = problems(memory(tensors, n_head=2))
    assert line.startswith(f"{HEAD}: differs from {WTE}")
    assert "largest absolute difference is 0.5" in line


def test_a_head_of_another_dtype_or_shape_is_refused() -> None:
    tensors = gpt2()
    tensors[HEAD] = tensors[HEAD].astype(ml_dtypes.bfloat16)
    lines = problems(memory(tensors, n_head=2))
    assert any(line.startswith(HEAD) and "bf16 (5, 8) against f32 (5, 8)" in line for line in lines)
    tensors = gpt2()
    tensors[HEAD] = tensors[HEAD][:-1]
    assert problems(memory(tensors, n_head=2))[0].startswith(HEAD)


@pytest.mark.parametrize("only", [WTE, HEAD])
def test_one_matrix_serves_as_embedding_and_head(only: str, tmp_path: Path) -> None:
    whole = written(memory(gpt2(), n_head=2), tmp_path)
    other = HEAD if only == WTE else WTE
    assert written(memory(gpt2(skip=[other]), n_head=2), tmp_path) == whole
    tied = MemoryCheckpoint(gpt2(skip=[other]), aliases={other: only}, metadata={"config": {"n_head": 2}})
    assert written(tied, tmp_path) == whole


def test_everything_wrong_is_listed_at_once() -> None:
    tensors = gpt2(skip=["transformer.h.1.ln_2.bias"])
    tensors["transformer.h.0.mlp.c_fc.lora_A"] = np.zeros((2, 8), np.float32)
    tensors["transformer.h.0.ln_1.weight"] = np.zeros(9, np.float32)
    tensors["transformer.h.1.attn.bias"][0, 0, 1, 2] = 1
    tensors["transformer.ln_f.bias"] = tensors["transformer.ln_f.bias"].astype(np.float16)
    lines = problems(memory(tensors))
    for expected in (
        "transformer.h.1.ln_2.bias: missing",
        "transformer.h.0.mlp.c_fc.lora_A: unexpected",
        "transformer.h.0.ln_1.weight: shape (9,) found, (8,) expected",
        "transformer.h.1.attn.bias: the mask is not tril(1): element (1, 2) is 1, expected 0",
        "transformer.ln_f.bias: dtype f16",
        "a file has one dtype",
        "config.n_head: the header needs it; pass --config n_head=…",
    ):
        assert sum(line.startswith(expected) for line in lines) == 1, (expected, lines)
    assert len(lines) == 7


NEEDED = [
    "n_head",
    "block_size",
    "multiple_of",
    "ffn_dim_multiplier",
    "rope_theta",
    "use_scaled_rope",
]


@pytest.mark.parametrize("layout", ["master", "branch", "infinitrain"])
def test_hyperparameters_are_never_guessed(layout: str) -> None:
    needed = NEEDED if layout == "master" else [*NEEDED, "norm_eps"]
    for key in needed:
        assert problems(llama(**{key: None, "n_kv_head": 2}), layout) == [
            f"config.{key}: the header needs it; pass --config {key}=…"
        ]
    lines = problems(memory(truth(LLAMA)), layout)
    assert {line.split(":")[0] for line in lines} == {f"config.{key}" for key in [*needed, "n_kv_head"]}


def test_what_follows_or_is_a_convention_need_not_be_given(tmp_path: Path) -> None:
    data = written(llama(n_kv_head=None, norm_eps=None, version=None), tmp_path)
    assert data == LLAMA.read_bytes()


@pytest.mark.parametrize(
    ("changes", "where", "what"),
    [
        ({"n_head": 3}, "n_head", "n_embd 16 is not divisible by n_head 3"),
        ({"n_kv_head": 4}, "n_kv_head", "make 48 rows of attn.c_attn.weight, but it has 32"),
        ({"n_layer": 5}, "n_layer", "5, but the tensors have n_layer 4"),
        ({"vocab_size": 128}, "vocab_size", "128, but the tensors have vocab_size 96"),
        ({"hidden_size": 32, "n_embd": None}, "n_embd", "32, but the tensors have n_embd 16"),
        ({"ffn_dim_multiplier": 3.0}, "ffn_dim_multiplier", "but mlp.c_fc.weight has 56 rows"),
        ({"multiple_of": 5}, "ffn_dim_multiplier", "but mlp.c_fc.weight has 56 rows"),
        ({"block_size": 0}, "block_size", "0 found, a whole number greater than 0 expected"),
        ({"block_size": 2**31}, "block_size", "does not fit a header word"),
        ({"rope_theta": "10000"}, "rope_theta", "'10000' found, a number greater than 0"),
        ({"rope_theta": 9.0}, "rope_theta", "could not be told from another layout's"),
        ({"use_scaled_rope": 1}, "use_scaled_rope", "1 found, true or false expected"),
        ({"version": "three"}, "version", "'three' found, a version such as 3.1 expected"),
    ],
)
def test_a_config_that_contradicts_is_refused(changes: dict[str, Any], where: str, what: str) -> None:
    (line,) = problems(llama(**changes))
    assert line.startswith(f"config.{where}: ")
    assert what in line


def test_a_minor_version_of_two_digits_would_make_a_branch_file_another(tmp_path: Path) -> None:
    assert "could not be told" in problems(llama(version="3.10"), "branch")[0]
    path = tmp_path / "written.bin"
    written(llama(version="3.10"), tmp_path)
    assert words(path)[14:16] == (3, 10)


def test_a_width_that_infinitrain_would_round_to_another_is_refused() -> None:
    # 1.315 * 40 = 52.6: llm.c cuts to 52, InfiniTrain rounds to 53; with multiple_of 4, 52 and 56 rows.
    n_embd, config = 15, {"n_head": 3, "n_kv_head": 1, "multiple_of": 4, "ffn_dim_multiplier": 1.315}
    tensors = {name: value for name, value in truth(LLAMA).items() if ".h." not in name or ".h.0." in name}
    shapes = {"c_attn": (25, n_embd), "attn.c_proj": (n_embd, n_embd), "c_fc": (52, n_embd)}
    shapes |= {"mlp.c_proj": (n_embd, 52), "lm_head": (96, n_embd), "wte": (96, n_embd)}
    for name in tensors:
        shape = next((shape for part, shape in shapes.items() if part in name), (n_embd,))
        tensors[name] = np.ones(shape, np.float32)
    model = memory(tensors, **{**config_of(LLAMA), **config, "n_layer": 1, "n_embd": n_embd})
    assert problems(model, "branch") == problems(model, "master") == []
    assert "makes MLPs 56 wide" in problems(model, "infinitrain")[0]


def test_other_dtypes_are_refused_by_name() -> None:
    tensors = {name: value.astype(np.float16) for name, value in gpt2().items()}
    lines = problems(memory(tensors, n_head=2))
    assert len(lines) == len(tensors)
    assert all("dtype f16 cannot be stored" in line for line in lines)
    half = {name: value.astype(ml_dtypes.bfloat16) for name, value in truth(LLAMA).items()}
    assert problems(memory(half, **config_of(LLAMA)), "infinitrain") == [
        "the layout 'infinitrain' holds f32 only, not bf16; pass -o layout=master"
    ]
    half["lm_head.weight"] = half["lm_head.weight"].astype(np.float32)
    (line,) = problems(memory(half, **config_of(LLAMA)))
    assert f"{len(half) - 1} bf16, 1 f32 tensors (lm_head.weight)" in line


@pytest.mark.parametrize(
    "raw", [7, {}, {"layout": "gpt3", "header": []}, {"layout": "gpt2", "header": [2**40]}]
)
def test_a_header_that_no_reader_recorded_is_refused(raw: Any) -> None:
    checkpoint = MemoryCheckpoint(gpt2(), metadata={"config": {"n_head": 2}, "llmc": raw})
    assert problems(checkpoint) == ['metadata: metadata["llmc"] is not the header of an llm.c file']


def test_empty_models_are_refused() -> None:
    assert problems(memory(gpt2(n_embd=0), n_head=2))


SAVED = "infinitrain/runs/gpt2_{}/ckpt/checkpoint_step_000002/{}.ckpt"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (SAVED.format("adam", "optimizer"), "not a known architecture"),
        (SAVED.format("lora", "model"), "transformer.h.1.attn.c_attn.lora_A: unexpected"),
        (
            "infinitrain/sharded/gpt2_tp2/checkpoint_step_000007/rank_000001/model.ckpt",
            "transformer.h.0.attn.c_attn.weight: shape",
        ),
        (
            "infinitrain/sharded/gpt2_pp2/checkpoint_step_000007/rank_000000/model.ckpt",
            "not a known architecture",
        ),
    ],
)
def test_what_is_no_whole_model_is_refused(source: str, what: str, tmp_path: Path) -> None:
    target = tmp_path / "model.bin"
    with pytest.raises(ckptio.UnsupportedError, match=what):
        ckptio.convert(golden(source), target, config={"n_head": 2})
    assert not target.exists()


def test_infinitrains_gpt2_becomes_an_llmc_file(tmp_path: Path) -> None:
    source, target = golden(SAVED.format("sgd", "model")), tmp_path / "model.bin"
    with pytest.raises(ckptio.UnsupportedError, match="pass --config n_head=…"):
        ckptio.convert(source, target)
    ckptio.convert(source, target, config={"n_head": "12"})
    expected = ckptio.load(source)
    with FORMAT.open(target, {}) as checkpoint:
        assert checkpoint.metadata["config"]["n_head"] == 12
        assert {name for name in expected if not name.endswith(".attn.bias")} == set(checkpoint)
        for name in checkpoint:
            assert checkpoint.read(name).tobytes() == expected[name].tobytes()
