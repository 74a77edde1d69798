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
"""

from __future__ import annotations

from ckptio.models.tables import ABSENT, TRIL, Architecture, Column, Row

__all__ = ["GPT2"]

_H = "transformer.h.{l}."
_WTE = "transformer.wte.weight"
_CONV1D = {"hf": Column(transposed=True)}

GPT2 = Architecture(
    "gpt2",
    "GPT-2",
    ("llmc", "infinitrain", "hf"),
    (
        Row(_WTE, ("vocab_size", "n_embd")),
        Row("transformer.wpe.weight", ("block_size", "n_embd")),
        Row(_H + "ln_1.weight", ("n_embd",)),
        Row(_H + "ln_1.bias", ("n_embd",)),
        Row(_H + "attn.bias", (1, 1, "block_size", "block_size"), TRIL, {"llmc": ABSENT, "hf": ABSENT}),
        Row(_H + "attn.c_attn.weight", ("3*n_embd", "n_embd"), columns=_CONV1D),
        Row(_H + "attn.c_attn.bias", ("3*n_embd",)),
        Row(_H + "attn.c_proj.weight", ("n_embd", "n_embd"), columns=_CONV1D),
        Row(_H + "attn.c_proj.bias", ("n_embd",)),
        Row(_H + "ln_2.weight", ("n_embd",)),
        Row(_H + "ln_2.bias", ("n_embd",)),
        Row(_H + "mlp.c_fc.weight", ("4*n_embd", "n_embd"), columns=_CONV1D),
        Row(_H + "mlp.c_fc.bias", ("4*n_embd",)),
        Row(_H + "mlp.c_proj.weight", ("n_embd", "4*n_embd"), columns=_CONV1D),
        Row(_H + "mlp.c_proj.bias", ("n_embd",)),
        Row("transformer.ln_f.weight", ("n_embd",)),
        Row("transformer.ln_f.bias", ("n_embd",)),
        Row("lm_head.weight", ("vocab_size", "n_embd"), _WTE, {"llmc": ABSENT, "hf": Column(tied_to=_WTE)}),
    ),
    {"hf": "transformer."},
)
