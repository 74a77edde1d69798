"""The layout ``hf`` held against golden files, torch's own arithmetic, and plain ``arange`` models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ckptio
from ckptio import MemoryCheckpoint, OptionError
from ckptio.adapters import Annotated, select
from ckptio.checkpoint import Checkpoint
from ckptio.models import Recognised, apply_layout, config_from_hf, config_to_hf, recognise
from ckptio.models.rotary import Rotary
from golden import golden

Arrays = dict[str, npt.NDArray[Any]]

N_LAYER, N_HEAD, N_KV_HEAD, HEAD = 2, 6, 2, 4
WIDTH = N_HEAD * HEAD
KV = N_KV_HEAD * HEAD
HIDDEN = 40
CONFIG = {"n_head": N_HEAD, "n_kv_head": N_KV_HEAD}
GPT2 = {"n_head": 2}


def filled(shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Return tensors of which no two elements are equal."""
    arrays, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        arrays[name] = np.arange(start, start + size, dtype=np.float32).reshape(shape)
        start += size
    return arrays


def llama(vocab: int = 10) -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (vocab, WIDTH)}
    for layer in range(N_LAYER):
        block = f"transformer.h.{layer}."
        shapes |= {
            block + "ln_1.weight": (WIDTH,),
            block + "attn.c_attn.weight": (WIDTH + 2 * KV, WIDTH),
            block + "attn.c_proj.weight": (WIDTH, WIDTH),
            block + "ln_2.weight": (WIDTH,),
            block + "mlp.c_fc.weight": (HIDDEN, WIDTH),
            block + "mlp.c_fc2.weight": (HIDDEN, WIDTH),
            block + "mlp.c_proj.weight": (WIDTH, HIDDEN),
        }
    return filled({**shapes, "transformer.ln_f.weight": (WIDTH,), "lm_head.weight": (vocab, WIDTH)})


def gpt2(vocab: int = 10, block_size: int = 6, width: int = 8) -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (vocab, width),
        "transformer.wpe.weight": (block_size, width),
    }
    for layer in range(N_LAYER):
        block = f"transformer.h.{layer}."
        for name, outer, inner in (
            ("attn.c_attn", 3 * width, width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", 4 * width, width),
            ("mlp.c_proj", width, 4 * width),
        ):
            shapes |= {f"{block}{name}.weight": (outer, inner), f"{block}{name}.bias": (outer,)}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{block}{name}.weight": (width,), f"{block}{name}.bias": (width,)}
    return filled({**shapes, "transformer.ln_f.weight": (width,), "transformer.ln_f.bias": (width,)})


def memory(arrays: Arrays, config: Mapping[str, Any] | None = None) -> Checkpoint:
    return MemoryCheckpoint(arrays, metadata={"config": dict(config or CONFIG)})


def arrange(checkpoint: Checkpoint, layout: str, source_layout: str | None = None) -> Checkpoint:
    result = apply_layout(checkpoint, layout, source_layout)
    assert result.problems == []
    return result.checkpoint


def arrays_of(checkpoint: Checkpoint) -> Arrays:
    return {name: checkpoint.read(name) for name in checkpoint.specs}


def assert_equal(found: Arrays, expected: Mapping[str, npt.NDArray[Any]]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def halves(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Do what transformers' ``permute`` does: the first of all pairs of a head, then the second."""
    size = len(rows) // heads
    order = [head * size + row for head in range(heads) for row in (*range(0, size, 2), *range(1, size, 2))]
    return rows[order]


def test_a_llama_is_split_and_its_heads_are_ordered_each_by_its_own_count() -> None:
    arrays = llama()
    found = arrays_of(arrange(memory(arrays), "hf"))
    for layer in range(N_LAYER):
        attention = f"model.layers.{layer}.self_attn."
        whole = arrays[f"transformer.h.{layer}.attn.c_attn.weight"]
        q, k, v = whole[:WIDTH], whole[WIDTH : WIDTH + KV], whole[WIDTH + KV :]
        np.testing.assert_array_equal(found[attention + "q_proj.weight"], halves(q, N_HEAD))
        np.testing.assert_array_equal(found[attention + "k_proj.weight"], halves(k, N_KV_HEAD))
        np.testing.assert_array_equal(found[attention + "v_proj.weight"], v)
        # The counts differ, so that one taken for the other would show.
        assert not np.array_equal(halves(k, N_KV_HEAD), halves(k, 1))
        own = arrays[f"transformer.h.{layer}.attn.c_proj.weight"]
        np.testing.assert_array_equal(found[attention + "o_proj.weight"], own)


@pytest.mark.parametrize("layout", ["llmc", "infinitrain"])
def test_a_llama_comes_back_bit_for_bit(layout: str) -> None:
    arrays = llama()
    there = arrange(memory(arrays), "hf")
    assert_equal(arrays_of(arrange(there, layout)), arrays)
    assert recognise(there) == Recognised(
        "llama3",
        ("hf",),
        {
            "n_layer": N_LAYER,
            "n_embd": WIDTH,
            "n_qkv": WIDTH + 2 * KV,
            "n_ffn": HIDDEN,
            "vocab_size": 10,
        },
    )


@pytest.mark.parametrize(
    ("vocab", "block_size", "width"), [(10, 6, 8), (128, 128, 8), (8, 6, 8), (24, 24, 24), (128, 4, 128)]
)
def test_a_gpt2_is_transposed_by_rule_and_comes_back(vocab: int, block_size: int, width: int) -> None:
    arrays = gpt2(vocab, block_size, width)
    there = arrange(memory(arrays, GPT2), "hf")
    turned = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    expected = {name: array.T if name.endswith(turned) else array for name, array in arrays.items()}
    assert_equal(arrays_of(there), expected)
    assert dict(there.aliases) == {"lm_head.weight": "transformer.wte.weight"}
    assert_equal(arrays_of(arrange(there, "llmc")), arrays)


@pytest.mark.parametrize("layout", ["llmc", "infinitrain"])
@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_a_gpt2_is_known_with_and_without_prefix_and_with_masks(layout: str, prefix: str) -> None:
    arrays = gpt2()
    there = arrays_of(arrange(memory(arrays, GPT2), "hf"))
    mask = np.tril(np.ones((1, 1, 6, 6), np.float32))
    masks = {f"transformer.h.{layer}.attn.bias": mask for layer in range(N_LAYER)}
    spelled = {prefix + name.removeprefix("transformer."): array for name, array in (there | masks).items()}
    back = arrays_of(arrange(memory(spelled, GPT2), layout))
    assert_equal(back, arrays | (masks if layout == "infinitrain" else {}))


def test_a_tied_head_is_absent_and_an_own_one_is_kept() -> None:
    arrays = llama()
    del arrays["lm_head.weight"]
    tied = MemoryCheckpoint(
        arrays, aliases={"lm_head.weight": "transformer.wte.weight"}, metadata={"config": CONFIG}
    )
    there = arrange(tied, "hf")
    assert dict(there.aliases) == {"lm_head.weight": "model.embed_tokens.weight"}
    # transformers leaves a tied head out, and says so nowhere in the file.
    silent = Annotated(select(there, list(there.specs)), metadata={"config": CONFIG})
    assert dict(silent.aliases) == {}
    for each in (there, silent):
        back = arrange(each, "llmc")
        assert dict(back.aliases) == {"lm_head.weight": "transformer.wte.weight"}
        assert_equal(arrays_of(back), arrays)

    own = gpt2()
    own["lm_head.weight"] = own["transformer.wte.weight"] + 1
    there = arrange(memory(own, GPT2), "hf")
    np.testing.assert_array_equal(there.read("lm_head.weight"), own["lm_head.weight"])
    result = apply_layout(there, "llmc")
    assert [problem.where for problem in result.problems] == ["lm_head.weight"]
    assert "largest absolute difference is 1" in result.problems[0].what


def test_an_equal_head_of_gpt2_is_the_embedding() -> None:
    arrays = gpt2()
    arrays["lm_head.weight"] = arrays["transformer.wte.weight"].copy()
    result = apply_layout(memory(arrays, GPT2), "hf")
    assert result.tied == {"lm_head.weight": "transformer.wte.weight"}
    assert "lm_head.weight" not in result.checkpoint.specs


def test_qwen2_has_biases_and_is_told_from_llama() -> None:
    shapes = {name: spec.shape for name, spec in arrange(memory(llama()), "hf").specs.items()}
    for layer in range(N_LAYER):
        attention = f"model.layers.{layer}.self_attn."
        shapes |= {
            f"{attention}{name}_proj.bias": (size,) for name, size in zip("qkv", (WIDTH, KV, KV), strict=True)
        }
    arrays = filled(shapes)
    found = recognise(memory(arrays))
    assert found is not None
    assert (found.architecture, found.layouts) == ("qwen2", ("hf",))
    assert_equal(arrays_of(arrange(memory(arrays), "hf")), arrays)
    (problem,) = apply_layout(memory(arrays), "llmc").problems
    assert "has no layout 'llmc'; it has hf" in problem.what


def test_a_scaling_of_a_model_of_unknown_length_leaves_the_length_to_transformers() -> None:
    sizes = {"n_layer": 1, "n_embd": 16, "vocab_size": 10, "n_qkv": 32, "n_ffn": 8}
    config, problems = config_to_hf(
        {"n_head": 4, "use_scaled_rope": True}, Recognised("qwen2", ("hf",), sizes), None, tied=False
    )
    assert problems == []
    assert config["rope_scaling"]["rope_type"] == "llama3"
    assert "max_position_embeddings" not in config


def test_what_is_renamed_and_split_keeps_its_spans() -> None:
    with ckptio.open(golden("llmc_llama3/llama3_L2H4KV2C32V96T16_masterlayout_fp32.bin")) as source:
        there = arrange(source, "hf")
        plain = [name for name in there.specs if there.spans(name) is not None]
        reordered = {
            f"model.layers.{layer}.self_attn.{each}_proj.weight" for layer in (0, 1) for each in "qk"
        }
        assert there.specs.keys() - set(plain) == reordered
        back = arrange(there, "llmc")
        kept = {name for name in back.specs if back.spans(name) is not None}
        assert back.specs.keys() - kept == {f"transformer.h.{layer}.attn.c_attn.weight" for layer in (0, 1)}


@pytest.mark.parametrize("max_bytes", [1, 4, 60, 100, 1 << 20])
def test_reordering_in_chunks_of_any_size(max_bytes: int) -> None:
    rows = np.arange(WIDTH * 5, dtype=np.float32).reshape(WIDTH, 5)
    turned = Rotary(MemoryCheckpoint({"q": rows}), {"q": HEAD}, to_halves=True)
    chunks = [bytes(chunk) for chunk in turned.chunks("q", max_bytes)]
    assert max(map(len, chunks)) <= max(4, max_bytes)
    assert b"".join(chunks) == halves(rows, N_HEAD).tobytes()
    back = Rotary(turned, {"q": HEAD}, to_halves=False)
    assert b"".join(map(bytes, back.chunks("q", max_bytes))) == rows.tobytes()


def test_every_unmatched_name_is_listed() -> None:
    arrays = arrays_of(arrange(memory(llama()), "hf"))
    arrays["model.layers.1.self_attn.q_proj.wait"] = arrays.pop("model.layers.1.self_attn.q_proj.weight")
    arrays["model.more"] = arrays["model.norm.weight"]
    for layout in ("llmc", "hf"):
        result = apply_layout(memory(arrays), layout)
        assert {problem.where for problem in result.problems} == {
            "model.layers.1.self_attn.q_proj.weight",
            "model.layers.1.self_attn.q_proj.wait",
            "model.more",
        }


def test_heads_are_asked_for_by_name_and_checked() -> None:
    for config, words in (
        ({"n_layer": N_LAYER}, "pass --config n_head="),
        ({"n_head": 5}, "n_embd 24 is not divisible by n_head 5"),
        ({"n_head": 2}, "makes heads of 12 rows, but K has 8"),
        ({"n_head": 24}, "makes heads of 1 rows"),
        ({"n_head": 6, "n_layer": 3}, "3, but the tensors have n_layer 2"),
    ):
        problems = apply_layout(memory(llama(), config), "hf").problems
        assert any(words in problem.what for problem in problems), problems


def test_a_source_layout_is_obeyed() -> None:
    arrays = gpt2()
    assert_equal(arrays_of(arrange(memory(arrays, GPT2), "llmc", "llmc")), arrays)
    problems = apply_layout(memory(arrays, GPT2), "llmc", "hf").problems
    assert "transformer.h.0.attn.c_attn.weight" in {problem.where for problem in problems}
    with pytest.raises(OptionError, match="unknown layout 'meta'"):
        apply_layout(memory(arrays, GPT2), "llmc", "meta")


def test_an_ambiguity_lists_the_candidates() -> None:
    nothing = {name: np.zeros((0,) * array.ndim, np.float32) for name, array in gpt2().items()}
    (problem,) = apply_layout(memory(nothing, GPT2), "hf").problems
    assert "(gpt2 as llmc, gpt2 as hf); pass --source_layout" in problem.what
    assert recognise(memory(nothing)) is None
    assert apply_layout(memory(nothing, GPT2), "hf", "hf").recognised is not None


LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_the_config_of_a_published_llama_goes_there_and_back() -> None:
    sizes = {"n_layer": 32, "n_embd": 4096, "vocab_size": 128256, "n_qkv": 6144, "n_ffn": 14336}
    found = Recognised("llama3", ("hf",), sizes)
    published = {
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_scaling": LLAMA31,
        "rope_theta": 500000.0,
        "vocab_size": 128256,
    }
    ours, problems = config_from_hf(published, found, "llmc")
    assert problems == []
    assert ours.pop("multiple_of") * 7 == 14336
    assert ours == {
        "n_layer": 32,
        "n_head": 32,
        "n_kv_head": 8,
        "n_embd": 4096,
        "vocab_size": 128256,
        "block_size": 131072,
        "norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "use_scaled_rope": True,
        "ffn_dim_multiplier": 1.3,
    }
    back, problems = config_to_hf(ours, found, ckptio.DType.BF16, tied=False)
    assert problems == []
    assert published.items() <= back.items()
    assert (back["bos_token_id"], back["eos_token_id"]) == (128000, 128001)
    assert (back["dtype"], back["tie_word_embeddings"]) == ("bfloat16", False)


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"model_type": "mistral"}, "config.model_type"),
        ({"intermediate_size": 89}, "config.intermediate_size"),
        ({"hidden_act": "gelu"}, "config.hidden_act"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "config.rope_scaling"),
        ({"rope_scaling": {**LLAMA31, "factor": 32.0}}, "config.rope_scaling"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "config.rope_scaling"),
        ({"rope_scaling": 3}, "config.rope_scaling"),
    ],
)
def test_what_only_transformers_can_do_is_refused(changed: dict[str, Any], where: str) -> None:
    found = Recognised("llama3", ("hf",), {"n_layer": 2, "n_embd": 32, "n_qkv": 64, "n_ffn": 88})
    config = {"model_type": "llama", "num_attention_heads": 4}
    assert config_from_hf(config, found, "llmc")[1] == []
    assert [problem.where for problem in config_from_hf({**config, **changed}, found, "llmc")[1]] == [where]


def test_gpt2_says_its_context_as_older_programs_read_it() -> None:
    sizes = {"n_layer": 2, "n_embd": 8, "vocab_size": 10, "block_size": 6}
    config, problems = config_to_hf(GPT2, Recognised("gpt2", ("hf",), sizes), None, tied=True)
    assert problems == []
    # llama.cpp's converter takes n_ctx, which transformers 5 no longer writes.
    assert (config["n_ctx"], config["n_positions"]) == (6, 6)
    assert "n_ctx" not in config_from_hf(config, Recognised("gpt2", ("hf",), sizes), "llmc")[0]


@pytest.mark.parametrize("n_head", [None, "6", [], {}, 0, 0.0, False, True, -1, 6.0, 1e300, 5, 1 << 70])
@pytest.mark.parametrize(("source", "layout"), [("llmc", "hf"), ("hf", "infinitrain"), ("hf", "gguf")])
def test_heads_that_no_model_has_are_refused_by_name(n_head: Any, source: str, layout: str) -> None:
    model = arrange(memory(llama(), {"n_head": N_HEAD}), source)
    wrong = Annotated(model, metadata={"config": {"n_head": n_head}})
    assert {each.where for each in apply_layout(wrong, layout).problems} == {"config.n_head"}
