"""LLaMA-3, as llm.c and InfiniTrain name it (the ``state_dict()`` of ``train_llama3.py``).

Weights are (out, in). The rows of ``c_attn`` are those of Q (n_head heads), K and V (n_kv_head heads
each): ``n_qkv`` in all; rotary pairs are interleaved, as in Meta's files. The MLP is
``c_proj(c_fc(x) * silu(c_fc2(x)))``, of inner width ``n_ffn``. The head is a matrix of its own.
"""

from __future__ import annotations

import math

from ckptio.models.tables import Architecture, Row

__all__ = ["LLAMA3", "ffn_range"]

_H = "transformer.h.{l}."

LLAMA3 = Architecture(
    "llama3",
    "LLaMA-3",
    ("llmc", "infinitrain"),
    (
        Row("transformer.wte.weight", ("vocab_size", "n_embd")),
        Row(_H + "ln_1.weight", ("n_embd",)),
        Row(_H + "attn.c_attn.weight", ("n_qkv", "n_embd")),
        Row(_H + "attn.c_proj.weight", ("n_embd", "n_embd")),
        Row(_H + "ln_2.weight", ("n_embd",)),
        Row(_H + "mlp.c_fc.weight", ("n_ffn", "n_embd")),
        Row(_H + "mlp.c_fc2.weight", ("n_ffn", "n_embd")),
        Row(_H + "mlp.c_proj.weight", ("n_embd", "n_ffn")),
        Row("transformer.ln_f.weight", ("n_embd",)),
        Row("lm_head.weight", ("vocab_size", "n_embd")),
    ),
)


def ffn_range(
    n_embd: int, multiple_of: int, multiplier: float, *, truncated: bool = False
) -> tuple[int, int]:
    """Return the smallest and the largest inner width of the MLP that the hyperparameters can mean.

    The width is ``int(8 * n_embd / 3)`` times ``ffn_dim_multiplier``, made whole, then raised to a
    multiple of ``multiple_of``. llm.c makes it whole by cutting and InfiniTrain by rounding, and the
    multiplier may have passed through float32, so there may be two. With ``truncated``, ``multiplier``
    is what ``int()`` left of the true one, which lies below ``multiplier + 1``.
    """
    base = 8 * n_embd // 3
    if truncated:
        low, high = int(multiplier) * base, int(multiplier + 1) * base - 1
    else:
        product = multiplier * base
        low, high = math.floor(product * (1 - 2.0**-23)), math.floor(product * (1 + 2.0**-23)) + 1
    return tuple(max(1, -(-whole // multiple_of)) * multiple_of for whole in (low, high))  # type: ignore[return-value]
