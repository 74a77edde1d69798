"""Qwen2 and Qwen2.5: LLaMA's blocks with a bias on Q, K and V.

transformers is where these models come from, so the canonical rows have its order: the heads of Q and K
are in halves. llm.c and InfiniTrain have no such model; the canonical names are made as theirs are.
"""

from __future__ import annotations

import dataclasses

from ckptio.models.llama3 import LLAMA3
from ckptio.models.tables import Architecture, Column, Part, Row

__all__ = ["QWEN2"]

_C_ATTN = "transformer.h.{l}.attn.c_attn."
_HF = "model.layers.{l}.self_attn."


def _qkv(kind: str) -> Column:
    sizes = {"q": "n_embd", "k": "n_kv", "v": "n_kv"}
    return Column(parts=tuple(Part(f"{_HF}{each}_proj.{kind}", rows) for each, rows in sizes.items()))


def _rows(row: Row) -> tuple[Row, ...]:
    if row.name != _C_ATTN + "weight":
        return (row,)
    weight = dataclasses.replace(row, columns={"hf": _qkv("weight")})
    return weight, Row(_C_ATTN + "bias", ("n_qkv",), columns={"hf": _qkv("bias")})


QWEN2 = Architecture(
    "qwen2",
    "Qwen2",
    ("hf",),
    tuple(each for row in LLAMA3.rows for each in _rows(row)),
    LLAMA3.prefixes,
)
