"""The hyperparameters of an architecture in one spelling: ``metadata["config"]``.

The spelling is that of llm.c and InfiniTrain. Known keys, and what they count:

=====================  =====  ==================================================================
n_layer                int    transformer blocks
n_head, n_kv_head      int    attention heads; heads of keys and values (LLaMA)
n_embd                 int    width of the residual stream
vocab_size             int    rows of the embedding, without padding
block_size             int    longest sequence, in tokens
multiple_of            int    the MLP's width is a multiple of it (LLaMA)
max_gen_batch_size     int    llm.c's bound on sequences generated at once
ffn_dim_multiplier     float  factor on the MLP's width (LLaMA)
norm_eps, rope_theta   float  epsilon of the norms; base of the rotary frequencies
use_scaled_rope        bool   LLaMA 3.1's scaling of those frequencies
rope_scaling           map    a scaling of other numbers than those, as transformers spells it
version                text   of LLaMA, such as 3.1
=====================  =====  ==================================================================
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from ckptio.errors import OptionError, Problem

__all__ = ["config_problems", "kv_heads", "normalise_config", "parse_config_value"]

_KINDS: dict[str, type] = {
    **dict.fromkeys(("n_layer", "n_head", "n_kv_head", "n_embd", "vocab_size", "block_size"), int),
    **dict.fromkeys(("multiple_of", "max_gen_batch_size"), int),
    **dict.fromkeys(("ffn_dim_multiplier", "norm_eps", "rope_theta"), float),
    "use_scaled_rope": bool,
    "version": str,
}

_SPELLINGS = {
    # transformers
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "num_key_value_heads": "n_kv_head",
    "hidden_size": "n_embd",
    "max_position_embeddings": "block_size",
    "n_positions": "block_size",
    "n_ctx": "block_size",
    "rms_norm_eps": "norm_eps",
    "layer_norm_epsilon": "norm_eps",
    # Meta's params.json
    "n_layers": "n_layer",
    "n_heads": "n_head",
    "n_kv_heads": "n_kv_head",
    "dim": "n_embd",
    "max_batch_size": "max_gen_batch_size",
    # llm.c in C
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "num_kv_heads": "n_kv_head",
    "channels": "n_embd",
    "max_seq_len": "block_size",
}

_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_EXPECTED = {
    int: "a whole number greater than 0",
    float: "a number greater than 0",
    bool: "true or false",
    str: "a version such as 3.1",
}
_F32_MAX = (2 - 2.0**-23) * 2.0**127
_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}")


def normalise_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``config`` with its known keys in the one spelling; all others stay as they are.

    Raises `OptionError` when ``config`` is no mapping, or two spellings of one key disagree.
    """
    if not isinstance(config, Mapping):
        raise OptionError(f"the config is {type(config).__name__}, not a map of hyperparameters")
    normal: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for key, value in config.items():
        known = _SPELLINGS.get(key, key)
        if known in normal and normal[known] != value:
            raise OptionError(
                f"the config says {origin[known]}={normal[known]} and {key}={value}, which both mean {known}"
            )
        normal.setdefault(known, value)
        origin.setdefault(known, key)
    return normal


def parse_config_value(key: str, text: str) -> int | float | bool | str:
    """Return the value of ``--config key=text``, of the type that ``key`` (in any spelling) has.

    Raises `OptionError` for an unknown key, with the known ones, and for text that is no such value.
    """
    kind = _KINDS.get(_SPELLINGS.get(key, key))
    if kind is None:
        near = difflib.get_close_matches(key, [*_KINDS, *_SPELLINGS], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise OptionError(f"--config {key}: unknown hyperparameter{hint}; known: {', '.join(sorted(_KINDS))}")
    try:
        value = _WORDS[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        value = None
    if value is None or not _is_valid(kind, value):
        raise OptionError(f"--config {key}={text}: {_EXPECTED[kind]} expected")
    return value


def kv_heads(n_embd: int, n_head: int, n_qkv: int) -> int:
    """Return how many heads keys and values have each, of which Q, K and V have ``n_qkv`` rows together."""
    return (n_qkv - n_embd) // (2 * (n_embd // n_head))


def config_problems(config: Mapping[str, Any], sizes: Mapping[str, int]) -> list[Problem]:
    """Return what is wrong in a config in the one spelling, by itself and against inferred ``sizes``.

    ``sizes`` are those of `ckptio.models.Recognised`, as far as they are known. Each problem's ``where``
    is ``config.KEY``.
    """
    problems = [
        Problem(f"config.{key}", f"{config[key]!r} found, {_EXPECTED[kind]} expected")
        for key, kind in _KINDS.items()
        if key in config and not _is_valid(kind, config[key])
    ]
    if problems:
        return problems
    for key, size in sizes.items():
        if key in _KINDS and config.get(key, size) != size:
            problems.append(Problem(f"config.{key}", f"{config[key]}, but the tensors have {key} {size}"))
    return problems or _head_problems({**config, **{key: sizes[key] for key in sizes}})


def _head_problems(known: Mapping[str, Any]) -> list[Problem]:
    n_embd, n_head, n_kv_head = known.get("n_embd"), known.get("n_head"), known.get("n_kv_head")
    if n_embd is None or n_head is None:
        return []
    if n_embd % n_head:
        return [Problem("config.n_head", f"n_embd {n_embd} is not divisible by n_head {n_head}")]
    n_qkv, head = known.get("n_qkv"), n_embd // n_head
    if n_kv_head is None and n_qkv is not None and (n_qkv <= n_embd or (n_qkv - n_embd) % (2 * max(head, 1))):
        what = f"n_head {n_head} makes heads of {head} rows, but K and V have {n_qkv - n_embd} together"
        return [Problem("config.n_head", what)]
    if n_kv_head is None:
        return []
    if n_head % n_kv_head:
        return [Problem("config.n_kv_head", f"n_head {n_head} is not divisible by n_kv_head {n_kv_head}")]
    rows = (n_head + 2 * n_kv_head) * head
    if n_qkv not in (None, rows):
        what = (
            f"n_head {n_head} and n_kv_head {n_kv_head} make {rows} rows of attn.c_attn.weight, "
            f"but it has {n_qkv}"
        )
        return [Problem("config.n_kv_head", what)]
    return []


def _is_valid(kind: type, value: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _F32_MAX
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    if kind is str:
        return isinstance(value, str) and _VERSION.fullmatch(value) is not None
    return isinstance(value, bool)
