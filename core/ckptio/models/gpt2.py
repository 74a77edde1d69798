"""GPT-2, as llm.c and nanoGPT name it (the ``state_dict()`` of ``train_gpt2.py``).

Weights are (out, in), as ``torch.nn.Linear`` has them; the rows of ``c_attn`` are all of Q, then K,
then V. The order of the rows is that of llm.c's model files.

The output head and the embedding are one matrix. ``llmc`` (llm.c) stores it once, as
``transformer.wte.weight``; ``infinitrain`` stores it under both names, with equal bytes, because the
loader takes one of the two without comparing. The causal masks ``attn.bias`` are buffers that
``infinitrain`` stores and ``llmc`` makes anew.

``hf`` (transformers) has these names, with or without ``transformer.``, and no masks. Its ``Conv1D`` keeps
four of the weights as (in, out). The head is stored only where it is no longer the embedding
(``tie_word_embeddings: false``).

``gguf`` (llama.cpp) has names of its own, no masks, and a head only where it is not the embedding. It
computes with biases, norms and positions in f32 alone. Source: ``GPT2Model`` and
``ModelBase.prepare_tensors`` of llama.cpp's converter, and ``MODEL_TENSORS`` of the package gguf 0.19.
"""

from __future__ import annotations

from ckptio.models.tables import ABSENT, TRIL, Architecture, Column, Row, implied_tie, part

__all__ = ["GPT2"]

_H = "transformer.h.{l}."
_WTE = "transformer.wte.weight"
_BLK = "blk.{l}."
_NO_MASK = {"llmc": ABSENT, "hf": ABSENT, "gguf": ABSENT}
_HEAD = {"llmc": ABSENT, "hf": Column(tied_to=_WTE), "gguf": implied_tie("output.weight", _WTE)}


def _f32(name: str) -> dict[str, Column]:
    return {"gguf": part(name, f32=True)}


def _conv1d(name: str) -> dict[str, Column]:
    return {"hf": Column(transposed=True), "gguf": part(name)}


GPT2 = Architecture(
    "gpt2",
    "GPT-2",
    ("llmc", "infinitrain", "hf", "gguf"),
    (
        Row(_WTE, ("vocab_size", "n_embd"), columns={"gguf": part("token_embd.weight")}),
        Row("transformer.wpe.weight", ("block_size", "n_embd"), columns=_f32("position_embd.weight")),
        Row(_H + "ln_1.weight", ("n_embd",), columns=_f32(_BLK + "attn_norm.weight")),
        Row(_H + "ln_1.bias", ("n_embd",), columns=_f32(_BLK + "attn_norm.bias")),
        Row(_H + "attn.bias", (1, 1, "block_size", "block_size"), TRIL, _NO_MASK),
        Row(_H + "attn.c_attn.weight", ("3*n_embd", "n_embd"), columns=_conv1d(_BLK + "attn_qkv.weight")),
        Row(_H + "attn.c_attn.bias", ("3*n_embd",), columns=_f32(_BLK + "attn_qkv.bias")),
        Row(_H + "attn.c_proj.weight", ("n_embd", "n_embd"), columns=_conv1d(_BLK + "attn_output.weight")),
        Row(_H + "attn.c_proj.bias", ("n_embd",), columns=_f32(_BLK + "attn_output.bias")),
        Row(_H + "ln_2.weight", ("n_embd",), columns=_f32(_BLK + "ffn_norm.weight")),
        Row(_H + "ln_2.bias", ("n_embd",), columns=_f32(_BLK + "ffn_norm.bias")),
        Row(_H + "mlp.c_fc.weight", ("4*n_embd", "n_embd"), columns=_conv1d(_BLK + "ffn_up.weight")),
        Row(_H + "mlp.c_fc.bias", ("4*n_embd",), columns=_f32(_BLK + "ffn_up.bias")),
        Row(_H + "mlp.c_proj.weight", ("n_embd", "4*n_embd"), columns=_conv1d(_BLK + "ffn_down.weight")),
        Row(_H + "mlp.c_proj.bias", ("n_embd",), columns=_f32(_BLK + "ffn_down.bias")),
        Row("transformer.ln_f.weight", ("n_embd",), columns=_f32("output_norm.weight")),
        Row("transformer.ln_f.bias", ("n_embd",), columns=_f32("output_norm.bias")),
        Row("lm_head.weight", ("vocab_size", "n_embd"), _WTE, _HEAD),
    ),
    {"hf": "transformer.", "gguf": ""},
)
