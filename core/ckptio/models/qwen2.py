"""Qwen2 and Qwen2.5: LLaMA's blocks with a bias on Q, K and V.

transformers is where these models come from, so the canonical rows have its order, which is llama.cpp's
too: the heads of Q and K are in halves. llm.c and InfiniTrain have no such model; the canonical names are
made as theirs are.
"""

from __future__ import annotations

import dataclasses

from ckptio.models.llama3 import DIVISORS, LLAMA3
from ckptio.models.tables import Architecture, Column, Part, Row

__all__ = ["QWEN2"]

_C_ATTN = "transformer.h.{l}.attn.c_attn."
_HF = "model.layers.{l}.self_attn.%s_proj."
_GGUF = "blk.{l}.attn_%s."


def _qkv(kind: str) -> dict[str, Column]:
    sizes = {"q": "n_embd", "k": "n_kv", "v": "n_kv"}
    parts = {
        layout: tuple(Part(name % each + kind, rows) for each, rows in sizes.items())
        for layout, name in (("hf", _HF), ("gguf", _GGUF))
    }
    return {"hf": Column(parts=parts["hf"]), "gguf": Column(parts=parts["gguf"], f32=kind == "bias")}


def _rows(row: Row) -> tuple[Row, ...]:
    if row.name == DIVISORS:
        return ()
    if row.name != _C_ATTN + "weight":
        return (row,)
    weight = dataclasses.replace(row, columns=_qkv("weight"))
    return weight, Row(_C_ATTN + "bias", ("n_qkv",), columns=_qkv("bias"))


QWEN2 = Architecture(
    "qwen2",
    "Qwen2",
    ("hf", "gguf"),
    tuple(each for row in LLAMA3.rows for each in _rows(row)),
    LLAMA3.prefixes,
)
