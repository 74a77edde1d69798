"""Models in every layout by numpy alone: the judge of ``ckptio.models``, which shares no code with it.

Names and orders are written out after the programs themselves: llm.c's ``train_gpt2.py`` and
``train_llama3.py``, transformers' ``modeling_*.py`` (its ``permute`` in ``convert_llama_weights_to_hf.py``),
and llama.cpp's ``convert_hf_to_gguf.py``. Every element of a model is another, so that a wrong order shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

LAYOUTS = {
    "gpt2": ("llmc", "infinitrain", "hf", "gguf"),
    "llama3": ("llmc", "infinitrain", "hf", "gguf"),
    "qwen2": ("hf", "gguf"),
}
HEADS = {"llmc": "lm_head.weight", "infinitrain": "lm_head.weight", "hf": "lm_head.weight"} | {
    "gguf": "output.weight"
}
"""The name of the output head, where a layout stores it."""

_GPT2_LINEAR = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output"} | {
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_GPT2_NORMS = {"ln_1": "attn_norm", "ln_2": "ffn_norm"}
_LLAMA = (
    ("ln_1", "input_layernorm", "attn_norm"),
    ("attn.c_proj", "self_attn.o_proj", "attn_output"),
    ("ln_2", "post_attention_layernorm", "ffn_norm"),
    ("mlp.c_fc", "mlp.up_proj", "ffn_up"),
    ("mlp.c_fc2", "mlp.gate_proj", "ffn_gate"),
    ("mlp.c_proj", "mlp.down_proj", "ffn_down"),
)
"""What is only renamed: by llm.c, transformers and llama.cpp."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model; heads of queries and of keys.

    Heads have six rows: of four, the two orders of rows are each other's inverse.
    """

    n_head: int = 6
    n_kv_head: int = 2
    n_embd: int = 36
    n_ffn: int = 40
    vocab: int = 11
    block: int = 7
    n_layer: int = 2

    @property
    def config(self) -> dict[str, Any]:
        """The hyperparameters that no tensor says."""
        known = {"n_head": self.n_head, "n_kv_head": self.n_kv_head, "block_size": self.block}
        return {**known, "norm_eps": 1e-5, "rope_theta": 10000.0, "use_scaled_rope": False}


class _Counter:
    def __init__(self) -> None:
        self._next = 1

    def __call__(self, *shape: int) -> Array:
        start = self._next
        self._next += int(np.prod(shape))
        return np.arange(start, self._next, dtype="<f4").reshape(shape)


def permute(rows: Array, heads: int) -> Array:
    """Return rows in the order of transformers, from Meta's: the halves of each head for its pairs."""
    shape = (heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return rows.reshape(shape).swapaxes(1, 2).reshape(rows.shape)


def model(architecture: str, layout: str, sizes: Sizes, *, tied: bool) -> Arrays:
    """Return a model as the programs of a layout store it; a tied head has the values of the embedding."""
    make = {"gpt2": _gpt2, "llama3": _llama, "qwen2": _llama}[architecture]
    return make(architecture, layout, sizes, tied)


def _gpt2(_architecture: str, layout: str, sizes: Sizes, tied: bool) -> Arrays:
    new, c = _Counter(), sizes.n_embd
    theirs = layout == "gguf"
    wte, wpe, head = new(sizes.vocab, c), new(sizes.block, c), new(sizes.vocab, c)
    shapes = {
        "attn.c_attn": (3 * c, c),
        "attn.c_proj": (c, c),
        "mlp.c_fc": (4 * c, c),
        "mlp.c_proj": (c, 4 * c),
    }
    made = {
        "token_embd.weight" if theirs else "transformer.wte.weight": wte,
        "position_embd.weight" if theirs else "transformer.wpe.weight": wpe,
    }
    for layer in range(sizes.n_layer):
        block = f"blk.{layer}." if theirs else f"transformer.h.{layer}."
        for name, gguf in _GPT2_NORMS.items():
            made |= {f"{block}{gguf if theirs else name}.{kind}": new(c) for kind in ("weight", "bias")}
        for name, gguf in _GPT2_LINEAR.items():
            weight, bias = new(*shapes[name]), new(shapes[name][0])
            path = block + (gguf if theirs else name)
            # Conv1D of transformers has (in, out).
            made |= {f"{path}.weight": weight.T.copy() if layout == "hf" else weight, f"{path}.bias": bias}
        if layout == "infinitrain":
            mask = np.tril(np.ones((sizes.block, sizes.block), "<f4"))
            made[f"{block}attn.bias"] = mask.reshape(1, 1, sizes.block, sizes.block)
    made |= {
        f"{'output_norm' if theirs else 'transformer.ln_f'}.{kind}": new(c) for kind in ("weight", "bias")
    }
    made[HEADS[layout]] = wte if tied else head
    return made


def _llama(architecture: str, layout: str, sizes: Sizes, tied: bool) -> Arrays:
    new, c, ffn = _Counter(), sizes.n_embd, sizes.n_ffn
    kv = c // sizes.n_head * sizes.n_kv_head
    which = {"llmc": 0, "infinitrain": 0, "hf": 1, "gguf": 2}[layout]
    wte, head, norm = new(sizes.vocab, c), new(sizes.vocab, c), new(c)
    blocks = ("transformer.h.{}.", "model.layers.{}.", "blk.{}.")
    # Meta's order of rows is that of llm.c and of llama.cpp; Qwen2 has transformers' everywhere.
    turned = layout == "hf" and architecture == "llama3"
    made = {("transformer.wte", "model.embed_tokens", "token_embd")[which] + ".weight": wte}
    shapes: Mapping[str, tuple[int, ...]] = {
        "ln_1": (c,),
        "ln_2": (c,),
        "attn.c_proj": (c, c),
        "mlp.c_fc": (ffn, c),
        "mlp.c_fc2": (ffn, c),
        "mlp.c_proj": (c, ffn),
    }
    for layer in range(sizes.n_layer):
        block = blocks[which].format(layer)
        for kind in ("weight", "bias") if architecture == "qwen2" else ("weight",):
            rest = (c,) if kind == "weight" else ()
            q, k, v = new(c, *rest), new(kv, *rest), new(kv, *rest)
            if which == 0:
                made[f"{block}attn.c_attn.{kind}"] = np.concatenate([q, k, v])
                continue
            if turned:
                q, k = permute(q, sizes.n_head), permute(k, sizes.n_kv_head)
            name = (None, "self_attn.{}_proj.", "attn_{}.")[which]
            assert name is not None
            made |= {
                block + name.format(each) + kind: rows for each, rows in zip("qkv", (q, k, v), strict=True)
            }
        for names in _LLAMA:
            made[f"{block}{names[which]}.weight"] = new(*shapes[names[0]])
    made[("transformer.ln_f", "model.norm", "output_norm")[which] + ".weight"] = norm
    made[HEADS[layout]] = wte if tied else head
    return made
