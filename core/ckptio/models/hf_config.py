"""Hyperparameters as ``config.json`` of transformers has them, and as ``ckptio.models.config`` spells them.

A config keeps what this module does not know, either way. Source of the keys and their defaults:
``GPT2Config``, ``LlamaConfig`` and ``Qwen2Config`` of transformers 4 and 5. What is written is the form
that both read: ``rope_theta`` and ``rope_scaling``, for which version 5 alone has ``rope_parameters``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckptio.dtypes import DType
from ckptio.errors import Problem
from ckptio.models.config import config_problems, kv_heads, normalise_config
from ckptio.models.llama3 import ffn_factors
from ckptio.models.matching import Recognised
from ckptio.models.rope_scaling import LLAMA31, rope_from_hf, scaling_of

__all__ = ["assumed_for_hf", "config_from_hf", "config_to_hf", "configured", "retyped"]

_DTYPES = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16", DType.F64: "float64"}
_GGUF = "gguf"
_FREE = frozenset({(_GGUF, "norm_eps")})
"""The keys that are fixed elsewhere, and the layout whose programs take any value of them."""
_LLAMA31_POSITIONS = 131072
_TRAINED = "trained_block_size"
"""Our key for a length up to which nothing is scaled: transformers warns of a scaled model that short."""

_MADE_ANEW = frozenset(
    {
        "architectures",
        "dtype",
        "head_dim",
        "model_type",
        "rope_parameters",
        "rope_scaling",
        "tie_word_embeddings",
        "torch_dtype",
        "transformers_version",
        _TRAINED,
    }
)
"""What `config_to_hf` makes of the tensors and of other keys."""


@dataclass(frozen=True)
class _Program:
    """What transformers calls an architecture: its keys, what it has without being told, and all else.

    ``fixed`` are what the layouts of other programs are: a config that says otherwise is no such model.
    ``usual`` stands for what no tensor says where nobody does. ``special`` has the tokens that begin and
    end a text, for the vocabulary of the published models. ``also`` are keys of older versions that other
    programs read, llama.cpp's converter among them, each with ours of the same value.
    """

    model_type: str
    class_name: str
    spelling: Mapping[str, str]
    implied: Mapping[str, Any]
    usual: Mapping[str, Any]
    fixed: Mapping[str, tuple[Any, ...]]
    template: Mapping[str, Any]
    special: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)


_SPELLING = {
    "vocab_size": "vocab_size",
    "block_size": "max_position_embeddings",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "n_embd": "hidden_size",
    "n_ffn": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
}

_PROGRAMS = {
    "gpt2": _Program(
        "gpt2",
        "GPT2LMHeadModel",
        {
            **{key: key for key in ("vocab_size", "n_layer", "n_head", "n_embd")},
            "block_size": "n_positions",
            "norm_eps": "layer_norm_epsilon",
        },
        {},
        {"norm_eps": 1e-5},
        {
            "norm_eps": (1e-5,),
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        {"activation_function": "gelu_new", "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
        {50257: (50256, 50256)},
        {"n_ctx": "block_size"},
    ),
    "llama3": _Program(
        "llama",
        "LlamaForCausalLM",
        _SPELLING,
        {"norm_eps": 1e-6, "rope_theta": 10000.0},
        {"norm_eps": 1e-5, "rope_theta": 500000.0, "block_size": 8192, "use_scaled_rope": False},
        {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
        {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
        {128256: (128000, 128001)},
    ),
    "qwen2": _Program(
        "qwen2",
        "Qwen2ForCausalLM",
        _SPELLING,
        {"norm_eps": 1e-6, "rope_theta": 10000.0},
        {},
        {"hidden_act": ("silu",), "use_sliding_window": (False,)},
        {"hidden_act": "silu", "use_sliding_window": False},
    ),
}


def config_from_hf(
    config: Mapping[str, Any], found: Recognised, layout: str
) -> tuple[dict[str, Any], list[Problem]]:
    """Return a config of transformers in the one spelling, and what in it ``layout`` has no room for.

    ``config`` may also be in the one spelling already, as it comes from GGUF, or from ``--config`` alone.
    """
    program = _PROGRAMS[found.architecture]
    fixed = {key: values for key, values in program.fixed.items() if (layout, key) not in _FREE}
    normal = normalise_config(config)
    problems = []
    if "model_type" in normal:
        if normal["model_type"] != program.model_type:
            what = f"{normal['model_type']!r} found, {program.model_type!r} expected for these tensors"
            problems.append(Problem("config.model_type", what))
        for key, values in fixed.items():
            if normal.get(key, values[0]) not in values:
                what = f"{normal[key]!r} found, {values[0]!r} expected: other programs have nothing else"
                problems.append(Problem(f"config.{key}", what))
    rope, wrong = rope_from_hf(normal, layout) if "rope_theta" in program.spelling else ({}, [])
    implied = program.implied if "model_type" in normal else {}
    ours = {key: value for key, value in normal.items() if key not in _MADE_ANEW and value is not None}
    if _TRAINED in normal and normal.get("block_size") == _LLAMA31_POSITIONS:
        ours["block_size"] = normal[_TRAINED]
    ours = {**implied, **rope, **ours, **found.sizes}
    width = ours.pop("intermediate_size", found.sizes.get("n_ffn"))
    if width != found.sizes.get("n_ffn"):
        what = f"{width!r}, but the tensors have {found.sizes.get('n_ffn')}"
        problems.append(Problem("config.intermediate_size", what))
    for key in ("n_qkv", "n_ffn", *fixed):
        ours.pop(key, None)
    if "n_ffn" in found.sizes and not {"multiple_of", "ffn_dim_multiplier"} & ours.keys():
        factors = ffn_factors(found.sizes["n_embd"], found.sizes["n_ffn"])
        ours["multiple_of"], ours["ffn_dim_multiplier"] = factors
    return ours, problems + wrong


def config_to_hf(
    config: Mapping[str, Any], found: Recognised, dtype: DType | None, *, tied: bool
) -> tuple[dict[str, Any], list[Problem]]:
    """Return a config in the one spelling as transformers has it, and which hyperparameters are wanting."""
    program = _PROGRAMS[found.architecture]
    normal = normalise_config(config)
    problems = config_problems(normal, found.sizes)
    if "n_head" not in normal:
        problems.append(Problem("config.n_head", "config.json needs it; pass --config n_head=…"))
    if problems:
        return {}, problems
    known = {**program.usual, **normal, **found.sizes}
    if "n_qkv" in known:
        known.setdefault("n_kv_head", kv_heads(known["n_embd"], known["n_head"], known["n_qkv"]))
        del known["n_qkv"]
    _, scaling = scaling_of(known)
    scaled = known.pop("use_scaled_rope", False)
    trained = known.get("block_size")
    if scaling and trained is not None and trained <= scaling["original_max_position_embeddings"]:
        known[_TRAINED] = trained
        known["block_size"] = _LLAMA31_POSITIONS
    written = {program.spelling.get(key, key): value for key, value in known.items()}
    written = {**program.template, **written}
    if "rope_theta" in program.spelling:
        rope = {"rope_type": "llama3", **LLAMA31} if scaled else known.get("rope_scaling")
        written["rope_scaling"] = rope
    written |= {key: known[ours] for key, ours in program.also.items()}
    begin, end = program.special.get(known["vocab_size"], (None, None))
    return {
        "architectures": [program.class_name],
        "model_type": program.model_type,
        **written,
        "bos_token_id": written.get("bos_token_id", begin),
        "eos_token_id": written.get("eos_token_id", end),
        "tie_word_embeddings": tied,
        **({"dtype": _DTYPES[dtype]} if dtype in _DTYPES else {}),
    }, []


def configured(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the hyperparameters ``given`` in the one spelling.

    A config of transformers stays in its own spelling: it may be written as it is.
    """
    normal = normalise_config(config)
    if "model_type" not in normal:
        return {**normal, **given}
    spelling = {each.model_type: each.spelling for each in _PROGRAMS.values()}.get(
        str(config["model_type"]), {}
    )
    changed = dict(config)
    for key, value in given.items():
        rope = config.get("rope_parameters")
        if key == "rope_theta" and isinstance(rope, Mapping):
            changed["rope_parameters"] = {**rope, key: value}
            continue
        names = [name for name in config if key in normalise_config({name: None})]
        changed |= dict.fromkeys(names or [spelling.get(key, key)], value)
    return changed


def assumed_for_hf(config: Mapping[str, Any], found: Recognised) -> dict[str, Any]:
    """Return what `config_to_hf` takes for granted where neither the config nor a tensor says it."""
    program = _PROGRAMS[found.architecture]
    said = normalise_config(config).keys() | found.sizes.keys() | program.fixed.keys()
    said |= {"use_scaled_rope"} if scaling_of(config)[1] else set()
    return {key: value for key, value in program.usual.items() if key not in said}


def retyped(config: Mapping[str, Any], dtype: DType) -> dict[str, Any]:
    """Return a config of transformers that says ``dtype`` where it said another."""
    name = _DTYPES.get(dtype)
    keys = {"dtype", "torch_dtype"} & config.keys() if "model_type" in config else set()
    return {key: name if key in keys and name else value for key, value in config.items()}
