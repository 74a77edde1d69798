"""LLaMA-3, as llm.c and InfiniTrain name it (the ``state_dict()`` of ``train_llama3.py``).

Weights are (out, in). The rows of ``c_attn`` are those of Q (n_head heads), K and V (n_kv_head heads
each): ``n_qkv`` in all; rotary pairs are interleaved, as in Meta's files. The MLP is
``c_proj(c_fc(x) * silu(c_fc2(x)))``, of inner width ``n_ffn``. The head is a matrix of its own.

``hf`` (transformers) stores Q, K and V apart, and the rows of each head of Q and K in halves: first the
first of every rotary pair, then the second. A head that is not stored is the embedding. ``gguf`` (llama.cpp)
stores Q, K and V apart too, their rows in the canonical order, and takes norms in f32 alone. LLaMA 3.1's
scaling of the rotary frequencies is a tensor there, ``rope_freqs.weight``, and a hyperparameter elsewhere.
Source: ``LlamaModel`` of llama.cpp's converter, and ``MODEL_TENSORS`` of the package gguf 0.19.
"""

from __future__ import annotations

import math
from typing import Literal

from ckptio.models.tables import (
    ABSENT,
    ROPE_DIVISORS,
    Architecture,
    Column,
    Part,
    Row,
    implied_tie,
    part,
)

__all__ = ["DIVISORS", "LLAMA3", "ffn_factors", "ffn_range"]

DIVISORS = "rope_freqs.weight"
_H = "transformer.h.{l}."
_HF = "model.layers.{l}."
_BLK = "blk.{l}."
_WTE = "transformer.wte.weight"
_QKV = {
    "hf": Column(
        parts=(
            Part(_HF + "self_attn.q_proj.weight", "n_embd", rotary=True),
            Part(_HF + "self_attn.k_proj.weight", "n_kv", rotary=True),
            Part(_HF + "self_attn.v_proj.weight", "n_kv"),
        )
    ),
    "gguf": Column(
        parts=(
            Part(_BLK + "attn_q.weight", "n_embd"),
            Part(_BLK + "attn_k.weight", "n_kv"),
            Part(_BLK + "attn_v.weight", "n_kv"),
        )
    ),
}
_HEAD = {"hf": part("lm_head.weight", tied_to=_WTE), "gguf": implied_tie("output.weight", _WTE)}


_HYPERPARAMETER = {"llmc": ABSENT, "infinitrain": ABSENT, "hf": ABSENT}


def _names(hf: str, gguf: str) -> dict[str, Column]:
    return {"hf": part(hf), "gguf": part(gguf, f32=gguf.endswith("norm.weight"))}


def _block(hf: str, gguf: str) -> dict[str, Column]:
    return _names(_HF + hf, _BLK + gguf)


LLAMA3 = Architecture(
    "llama3",
    "LLaMA-3",
    ("llmc", "infinitrain", "hf", "gguf"),
    (
        Row(_WTE, ("vocab_size", "n_embd"), columns=_names("model.embed_tokens.weight", "token_embd.weight")),
        Row(DIVISORS, ("n_freq",), ROPE_DIVISORS, {**_HYPERPARAMETER, "gguf": part(DIVISORS, f32=True)}),
        Row(_H + "ln_1.weight", ("n_embd",), columns=_block("input_layernorm.weight", "attn_norm.weight")),
        Row(_H + "attn.c_attn.weight", ("n_qkv", "n_embd"), columns=_QKV),
        Row(
            _H + "attn.c_proj.weight",
            ("n_embd", "n_embd"),
            columns=_block("self_attn.o_proj.weight", "attn_output.weight"),
        ),
        Row(
            _H + "ln_2.weight",
            ("n_embd",),
            columns=_block("post_attention_layernorm.weight", "ffn_norm.weight"),
        ),
        Row(
            _H + "mlp.c_fc.weight", ("n_ffn", "n_embd"), columns=_block("mlp.up_proj.weight", "ffn_up.weight")
        ),
        Row(
            _H + "mlp.c_fc2.weight",
            ("n_ffn", "n_embd"),
            columns=_block("mlp.gate_proj.weight", "ffn_gate.weight"),
        ),
        Row(
            _H + "mlp.c_proj.weight",
            ("n_embd", "n_ffn"),
            columns=_block("mlp.down_proj.weight", "ffn_down.weight"),
        ),
        Row(
            "transformer.ln_f.weight", ("n_embd",), columns=_names("model.norm.weight", "output_norm.weight")
        ),
        Row("lm_head.weight", ("vocab_size", "n_embd"), columns=_HEAD),
    ),
    {"hf": "model.", "gguf": ""},
)


def ffn_range(
    n_embd: int, multiple_of: int, multiplier: float, how: Literal["cut", "rounded", "lost"]
) -> tuple[int, int]:
    """Return the smallest and the largest inner width of the MLP that the hyperparameters can mean.

    The width is ``int(8 * n_embd / 3)`` times ``ffn_dim_multiplier``, made whole, then raised to a
    multiple of ``multiple_of``. llm.c makes it whole by cutting (``how="cut"``), InfiniTrain by rounding
    (``"rounded"``); the two bounds differ only where the float32 that the multiplier has passed through
    decides. With ``"lost"``, ``multiplier`` is what ``int()`` left of the true one.
    """
    base = 8 * n_embd // 3
    if how == "lost":
        low, high = int(multiplier) * base, (int(multiplier) + 1) * base - 1
    else:
        half = 0.5 if how == "rounded" else 0.0
        low, high = (math.floor(multiplier * base * (1 + error) + half) for error in (-(2.0**-23), 2.0**-23))
    return _raised(low, multiple_of), _raised(high, multiple_of)


def ffn_factors(n_embd: int, n_ffn: int) -> tuple[int, float]:
    """Return a ``multiple_of`` and an ``ffn_dim_multiplier`` that make an MLP of inner width ``n_ffn``.

    Many do. The multiplier is the first of Meta's own (1, 1.3, 1.5) that any power of two fits, and that
    power the largest; else the multiplier is the plain quotient.
    """
    powers = [1 << bit for bit in range(n_ffn.bit_length(), -1, -1) if n_ffn % (1 << bit) == 0]
    quotient = n_ffn / max(1, 8 * n_embd // 3)
    for multiplier in (1.0, 1.3, 1.5, quotient):
        for multiple_of in powers:
            ranges = [ffn_range(n_embd, multiple_of, multiplier, how) for how in ("cut", "rounded")]
            if all(low == high == n_ffn for low, high in ranges):
                return multiple_of, multiplier
    return n_ffn, quotient


def _raised(width: int, multiple_of: int) -> int:
    return max(1, -(-width // multiple_of)) * multiple_of
