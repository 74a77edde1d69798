"""The tables of architectures, the engine that applies their layouts, and the spelling of a config."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import ckptio
from ckptio import Checkpoint, MemoryCheckpoint, OptionError
from ckptio.models import (
    apply_layout,
    architecture,
    config_problems,
    dim_value,
    ffn_range,
    normalise_config,
    parse_config_value,
    recognise,
)
from ckptio.testing.bounds import memory_bound
from golden import golden
from llmc_files import MODELS, gpt2, layout_of, truth

WTE, HEAD = "transformer.wte.weight", "lm_head.weight"
MASKS = ["transformer.h.0.attn.bias", "transformer.h.1.attn.bias"]
LLAMA = golden("llmc_llama3/llama3_L4H4KV2C16V96T16_masterlayout_fp32.bin")
INFINITRAIN = golden("infinitrain/runs/gpt2_sgd/ckpt/checkpoint_step_000002/model.ckpt")


def reasons(checkpoint: Checkpoint, layout: str = "llmc") -> dict[str, str]:
    return {problem.where: problem.what for problem in apply_layout(checkpoint, layout).problems}


def test_real_models_are_recognised_with_their_sizes() -> None:
    for path in MODELS:
        found = recognise(MemoryCheckpoint(truth(path)))
        assert found is not None
        if layout_of(path) == "gpt2":
            assert (found.architecture, found.layouts) == ("gpt2", ("infinitrain",))
        else:
            assert (found.architecture, found.layouts) == ("llama3", ("llmc", "infinitrain"))
    with ckptio.open(INFINITRAIN) as checkpoint:
        found = recognise(checkpoint)
    assert found is not None
    assert found.sizes == {"n_layer": 2, "n_embd": 48, "vocab_size": 97, "block_size": 32}
    found = recognise(MemoryCheckpoint(truth(LLAMA)))
    assert found is not None
    assert found.sizes == {"n_layer": 4, "n_embd": 16, "vocab_size": 96, "n_qkv": 32, "n_ffn": 56}


def test_no_model_is_recognised_as_none() -> None:
    assert recognise(MemoryCheckpoint({"weight": np.ones(3)})) is None
    assert recognise(MemoryCheckpoint({})) is None
    assert recognise(MemoryCheckpoint(gpt2(skip=["transformer.ln_f.bias"]))) is None
    assert recognise(MemoryCheckpoint(gpt2() | {"transformer.ln_f.bias": np.ones(7, np.float32)})) is None


def test_to_llmc_masks_are_derived_and_the_head_is_tied() -> None:
    tensors = gpt2()
    result = apply_layout(MemoryCheckpoint(tensors), "llmc")
    assert result.problems == []
    assert list(result.derived) == MASKS
    assert result.tied == {HEAD: WTE}
    assert result.added == {}
    assert result.checkpoint.aliases == {HEAD: WTE}
    assert set(result.checkpoint.specs) == set(tensors) - {HEAD, *MASKS}
    assert all(np.array_equal(result.checkpoint.read(name), tensors[name]) for name in result.checkpoint)
    found = recognise(result.checkpoint)
    assert found is not None
    assert found.layouts == ("llmc",)


def test_to_infinitrain_masks_and_head_are_there_again() -> None:
    tensors = gpt2()
    lean = apply_layout(MemoryCheckpoint(tensors), "llmc").checkpoint
    result = apply_layout(lean, "infinitrain")
    assert result.problems == []
    assert set(result.added) == set(MASKS)
    assert set(result.checkpoint) == set(tensors)
    for name, value in tensors.items():
        assert result.checkpoint.read(name).tobytes() == value.tobytes()
        assert result.checkpoint.read(name).dtype == value.dtype
        assert result.checkpoint.read(name).shape == value.shape
    # A head that is stored already stays stored, and a mask too.
    whole = apply_layout(MemoryCheckpoint(tensors), "infinitrain")
    assert (whole.added, whole.tied, whole.derived) == ({}, {}, {})
    assert list(whole.checkpoint.specs) == list(tensors)


def test_spans_are_kept_so_that_the_kernel_copies() -> None:
    with ckptio.open(INFINITRAIN) as checkpoint:
        result = apply_layout(checkpoint, "llmc")
        assert all(result.checkpoint.spans(name) for name in result.checkpoint.specs)


# T4: one of the two names, or both as a tie, in either direction.
@pytest.mark.parametrize("layout", ["llmc", "infinitrain"])
@pytest.mark.parametrize("stored", [WTE, HEAD])
@pytest.mark.parametrize("tied", [True, False])
def test_one_matrix_under_either_name_serves_as_both(layout: str, stored: str, tied: bool) -> None:
    other = HEAD if stored == WTE else WTE
    tensors = gpt2(skip=[other])
    source = MemoryCheckpoint(tensors, aliases={other: stored} if tied else {})
    result = apply_layout(source, layout)
    assert result.problems == []
    assert result.checkpoint.aliases == {HEAD: WTE}
    assert np.array_equal(result.checkpoint.read(WTE), tensors[stored])
    assert (HEAD in result.added) == (stored == WTE and not tied)


@pytest.mark.parametrize("layout", ["llmc", "infinitrain"])
def test_a_head_that_differs_is_a_problem_with_the_largest_difference(layout: str) -> None:
    tensors = gpt2(vocab=70_000)
    tensors[HEAD][-1, -1] += np.float32(0.125)  # beyond the first chunk of comparing
    tensors[HEAD][0, 0] -= np.float32(0.0625)
    found = reasons(MemoryCheckpoint(tensors), layout)
    assert list(found) == [HEAD]
    assert WTE in found[HEAD]
    assert float(found[HEAD].rpartition(" ")[2]) == pytest.approx(0.125, rel=1e-5)


def test_bits_that_differ_without_a_difference_are_a_problem() -> None:
    tensors = gpt2()
    tensors[WTE][0, 0], tensors[HEAD][0, 0] = 0.0, -0.0
    assert "bits of zeros or NaNs differ" in reasons(MemoryCheckpoint(tensors))[HEAD]
    tensors[WTE][0, 0] = tensors[HEAD][0, 0] = np.nan
    assert reasons(MemoryCheckpoint(tensors)) == {}


def test_a_head_of_another_dtype_is_a_problem_with_both() -> None:
    tensors = gpt2()
    tensors[HEAD] = tensors[HEAD].astype(ml_dtypes.bfloat16)
    assert "bf16 (5, 8) against f32 (5, 8)" in reasons(MemoryCheckpoint(tensors))[HEAD]


@pytest.mark.parametrize("place", [(0, 1), (599, 0), (599, 599), (598, 599)])
def test_one_wrong_element_of_a_mask_is_found_wherever_it_is(place: tuple[int, int]) -> None:
    tensors = gpt2(block=600)
    mask = tensors[MASKS[1]][0, 0]
    mask[place] = 1 - mask[place]
    found = reasons(MemoryCheckpoint(tensors))
    assert list(found) == [MASKS[1]]
    assert f"element {place} is {mask[place]:g}, expected {1 - mask[place]:g}" in found[MASKS[1]]


def test_a_mask_that_is_not_a_number_is_no_mask() -> None:
    tensors = gpt2()
    tensors[MASKS[0]][0, 0, 3, 0] = np.nan
    assert list(reasons(MemoryCheckpoint(tensors))) == [MASKS[0]]


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float64, ml_dtypes.bfloat16])
def test_a_mask_of_any_dtype_is_derived_by_its_values(dtype: type) -> None:
    tensors = gpt2()
    tensors |= {name: tensors[name].astype(dtype) for name in MASKS}
    result = apply_layout(MemoryCheckpoint(tensors), "llmc")
    assert result.problems == []
    assert list(result.derived) == MASKS


def test_masks_that_are_one_tensor_are_derived_too() -> None:
    tensors = gpt2(skip=MASKS[1:])
    result = apply_layout(MemoryCheckpoint(tensors, aliases={MASKS[1]: MASKS[0]}), "llmc")
    assert list(result.derived) == MASKS
    assert not set(MASKS) & set(result.checkpoint)


def test_a_mask_of_another_shape_is_a_problem_of_its_shape() -> None:
    tensors = gpt2()
    tensors[MASKS[0]] = np.tri(5, dtype=np.float32)[None, None]
    assert reasons(MemoryCheckpoint(tensors)) == {
        MASKS[0]: "shape (1, 1, 5, 5) found, (1, 1, 4, 4) expected by the other tensors"
    }


def test_made_masks_come_in_bounded_chunks() -> None:
    lean = apply_layout(MemoryCheckpoint(gpt2(block=600)), "llmc").checkpoint
    made = apply_layout(lean, "infinitrain").checkpoint
    chunks = list(made.chunks(MASKS[0], 1000))
    assert max(map(len, chunks)) <= 1000
    assert b"".join(chunks) == np.tri(600, dtype=np.float32).tobytes()


def test_everything_is_listed_at_once() -> None:
    tensors = gpt2(skip=["transformer.h.0.ln_1.weight", "transformer.wpe.weight", *MASKS])
    tensors["transformer.h.1.attn.c_attn.weight"] = np.ones((8, 24), np.float32)
    tensors["transformer.h.00.ln_1.weight"] = tensors["extra"] = np.ones(8, np.float32)
    tensors[HEAD] = tensors[HEAD] + 1
    assert set(reasons(MemoryCheckpoint(tensors))) == {
        "transformer.h.0.ln_1.weight",
        "transformer.wpe.weight",
        "transformer.h.1.attn.c_attn.weight",
        "transformer.h.00.ln_1.weight",
        "extra",
        HEAD,
    }


def test_one_wrong_shape_is_one_problem_even_in_the_first_tensor() -> None:
    for name in (WTE, "transformer.h.0.ln_1.weight", "transformer.h.0.mlp.c_fc.weight"):
        tensors = gpt2() | {name: np.ones((3, 3, 3), np.float32)}
        assert [where for where in reasons(MemoryCheckpoint(tensors)) if where != HEAD] == [name]


def test_a_far_away_layer_does_not_make_up_missing_ones() -> None:
    tensors = gpt2()
    tensors["transformer.h.99999999.ln_1.weight"] = np.ones(8, np.float32)
    assert list(reasons(MemoryCheckpoint(tensors))) == ["transformer.h.99999999.ln_1.weight"]


def test_a_layer_that_is_missing_in_between_is_named() -> None:
    tensors = {name: value for name, value in gpt2(n_layer=3).items() if ".h.1." not in name}
    found = reasons(MemoryCheckpoint(tensors))
    assert len(found) == 12
    assert all(where.startswith("transformer.h.1.") and "missing" in what for where, what in found.items())


def test_many_layers_of_one_row_do_not_make_up_all_the_others() -> None:
    one = np.ones(8, np.float32)
    checkpoint = MemoryCheckpoint({f"blk.{i}.attn_norm.weight": one for i in range(20_000)})
    with memory_bound(20 << 20, "20,000 layers of one row"):
        (problem,) = apply_layout(checkpoint, "hf", "gguf").problems
    # A LLaMA of llama.cpp has eight more in each layer, and two of none where the head is the embedding.
    missing = 20_000 * 8 + 2
    assert f"and {missing - 20} more" in problem.what


def test_what_is_no_known_architecture_is_one_problem_with_the_nearest() -> None:
    (problem,) = apply_layout(MemoryCheckpoint({f"w{i}": np.ones(1) for i in range(50)}), "llmc").problems
    assert problem.where == ""
    assert "not a known architecture; the nearest, LLaMA-3" in problem.what
    assert "w19 and 30 more" in problem.what
    prefixed = {f"module.{name}": value for name, value in gpt2().items()}
    problem, remedy = apply_layout(MemoryCheckpoint(prefixed), "infinitrain").problems
    assert "module.transformer.wte.weight" in problem.what
    assert remedy.what.endswith("pass --select 'module.*' --strip_prefix module.")


def test_llama_has_the_same_names_in_both_layouts() -> None:
    tensors = truth(LLAMA)
    for layout in ("llmc", "infinitrain"):
        result = apply_layout(MemoryCheckpoint(tensors), layout)
        assert (result.problems, result.derived, result.tied, result.added) == ([], {}, {}, {})
        assert list(result.checkpoint.specs) == list(tensors)
    del tensors[HEAD]
    assert list(reasons(MemoryCheckpoint(tensors))) == [HEAD]
    # Tied by the model's author, as the small LLaMA 3.2 are: the name is there, so nothing is missing.
    assert reasons(MemoryCheckpoint(tensors, aliases={HEAD: WTE})) == {}


def test_unknown_names_of_layouts_and_architectures_list_the_known() -> None:
    with pytest.raises(OptionError, match="unknown layout 'meta'; known: llmc, infinitrain, hf"):
        apply_layout(MemoryCheckpoint({}), "meta")
    with pytest.raises(OptionError, match="unknown architecture 'bert'; known: gpt2, llama3"):
        architecture("bert")


def test_dimensions() -> None:
    assert dim_value(1, {}) == 1
    assert dim_value("n_embd", {"n_embd": 8}) == 8
    assert dim_value("3*n_embd", {"n_embd": 8}) == 24


def test_spellings_are_normalised() -> None:
    transformers = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
    }
    assert normalise_config(transformers | {"model_type": "llama"}) == {
        "n_embd": 32,
        "n_head": 4,
        "n_kv_head": 2,
        "norm_eps": 1e-6,
        "model_type": "llama",
    }
    assert normalise_config({"n_positions": 16, "n_ctx": 16}) == {"block_size": 16}
    with pytest.raises(OptionError, match="n_positions=16 and n_ctx=32, which both mean block_size"):
        normalise_config({"n_positions": 16, "n_ctx": 32})
    with pytest.raises(OptionError, match="the config is list"):
        normalise_config([])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("n_head", "12", 12),
        ("num_attention_heads", "12", 12),
        ("rope_theta", "500000", 500000.0),
        ("norm_eps", "1e-5", 1e-5),
        ("use_scaled_rope", "True", True),
        ("use_scaled_rope", "0", False),
        ("version", "3.1", "3.1"),
    ],
)
def test_text_of_the_command_line(key: str, text: str, value: object) -> None:
    found = parse_config_value(key, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "what"),
    [
        ("n_head", "12.0", "n_head=12.0: a whole number greater than 0 expected"),
        ("n_head", "-1", "a whole number"),
        ("n_head", "9" * 5000, "a whole number"),
        ("norm_eps", "nan", "a number greater than 0"),
        ("norm_eps", "1e39", "a number greater than 0"),
        ("use_scaled_rope", "maybe", "true or false expected"),
        ("version", "three", "a version such as 3.1"),
        ("n_hed", "12", "unknown hyperparameter; did you mean n_head.; known: .*block_size"),
    ],
)
def test_text_that_is_no_value_is_refused(key: str, text: str, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        parse_config_value(key, text)


def test_a_config_is_held_against_the_sizes() -> None:
    sizes = {"n_layer": 4, "n_embd": 16, "vocab_size": 96, "n_qkv": 32, "n_ffn": 56}
    assert config_problems({"n_layer": 4, "n_head": 4, "n_kv_head": 2, "other": []}, sizes) == []
    found = config_problems({"n_layer": 5, "vocab_size": 97}, sizes)
    assert {problem.where: problem.what for problem in found} == {
        "config.n_layer": "5, but the tensors have n_layer 4",
        "config.vocab_size": "97, but the tensors have vocab_size 96",
    }
    (problem,) = config_problems({"n_head": 3}, sizes)
    assert "n_embd 16 is not divisible by n_head 3" in problem.what
    # One head of 16 rows leaves no whole head for the 8 rows of K.
    (problem,) = config_problems({"n_head": 1}, sizes)
    assert "heads of 16 rows, but K and V have 16 together" in problem.what
    # 4 + 2 * 4 heads of 4 rows are 48, not 32.
    (problem,) = config_problems({"n_head": 4, "n_kv_head": 4}, sizes)
    assert "48 rows of attn.c_attn.weight, but it has 32" in problem.what
    assert [p.where for p in config_problems({"n_head": True, "norm_eps": math.inf}, sizes)] == [
        "config.n_head",
        "config.norm_eps",
    ]


def llmc_width(n_embd: int, multiplier: float, multiple_of: int) -> int:
    """The lines of llm.c's train_llama3.py."""
    hidden_dim = 4 * n_embd
    hidden_dim = int(2 * hidden_dim / 3)
    hidden_dim = int(multiplier * hidden_dim)
    return multiple_of * ((hidden_dim + multiple_of - 1) // multiple_of)


@pytest.mark.parametrize("n_embd", [4, 16, 32, 2048, 4096, 8192])
@pytest.mark.parametrize("multiplier", [0.7, 1.0, 1.3, 1.5, 2.9])
@pytest.mark.parametrize("multiple_of", [1, 8, 256, 1024])
def test_the_width_of_the_mlp_is_in_the_range(n_embd: int, multiplier: float, multiple_of: int) -> None:
    width = llmc_width(n_embd, multiplier, multiple_of)
    narrowed = float(np.float32(multiplier))
    for known in (multiplier, narrowed):
        low, high = ffn_range(n_embd, multiple_of, known, "cut")
        assert low <= width <= high <= low + multiple_of
    low, high = ffn_range(n_embd, multiple_of, int(multiplier), "lost")
    assert low <= max(width, multiple_of) <= high
    exact = multiple_of * math.ceil(math.floor(multiplier * (8 * n_embd // 3) + 0.5) / multiple_of)
    low, high = ffn_range(n_embd, multiple_of, narrowed, "rounded")
    assert low <= exact <= high <= low + multiple_of


def test_a_known_model_has_one_width() -> None:
    # LLaMA-3.1 8B: n_embd 4096, multiple_of 1024, multiplier 1.3, 14336 rows.
    assert ffn_range(4096, 1024, 1.3, "cut") == (14336, 14336)
    assert ffn_range(4096, 1024, 1.3, "rounded") == (14336, 14336)


def test_the_table_of_gpt2_has_llmcs_order_and_names() -> None:
    # parameter_tensors in train_gpt2.c
    attention = "ln_1.weight ln_1.bias c_attn.weight c_attn.bias attn.c_proj.weight attn.c_proj.bias"
    mlp = "ln_2.weight ln_2.bias c_fc.weight c_fc.bias mlp.c_proj.weight mlp.c_proj.bias"
    order = f"wte wpe {attention} {mlp} ln_f.weight ln_f.bias"
    rows = [row.name for row in architecture("gpt2").rows if row.column("llmc").stored]
    assert len(rows) == 16
    assert all(part in name for part, name in zip(order.split(), rows, strict=True))
