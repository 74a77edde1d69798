"""Train a LLaMA-3, and save and resume it in any checkpoint format: ``python examples/train_llama3.py``.

The model has the names and shapes of llm.c's ``train_llama3.py``, which InfiniTrain shares: weights are
(out, in), the rows of ``c_attn`` are those of Q, K and V, rotary pairs are interleaved as in Meta's files,
and the output head is a matrix of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flags import Entry
from loop import run
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["Llama3", "Llama3Config", "main"]


@dataclass(frozen=True)
class Llama3Config:
    """Hyperparameters, in the spelling of ``metadata["config"]``; the defaults are those of LLaMA-3.2 1B."""

    block_size: int = 2048
    vocab_size: int = 128256
    n_layer: int = 16
    n_head: int = 32
    n_kv_head: int = 8
    n_embd: int = 2048
    ffn_dim_multiplier: float = 1.5
    multiple_of: int = 256
    norm_eps: float = 1e-5
    rope_theta: float = 500000.0
    use_scaled_rope: bool = True
    max_gen_batch_size: int = 4
    version: str = "3.1"

    @property
    def n_ffn(self) -> int:
        """The inner width of the MLP."""
        width = int(self.ffn_dim_multiplier * (8 * self.n_embd // 3))
        return -(-width // self.multiple_of) * self.multiple_of


class RMSNorm(nn.Module):
    """Divide by the root of the mean square, in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        full = x.float()
        scale = torch.rsqrt(full.square().mean(-1, keepdim=True) + self.eps)
        return (full * scale).type_as(x) * self.weight


def rotary_angles(config: Llama3Config) -> Tensor:
    """Return the angle of each position and pair of a head, float32 of shape (block_size, width / 2).

    LLaMA 3.1 stretches low frequencies by 8, leaves high ones, and goes smoothly between them.
    """
    width = config.n_embd // config.n_head
    frequencies = config.rope_theta ** -(torch.arange(0, width, 2).float() / width)
    if config.use_scaled_rope:
        stretch, low, high, old_length = 8.0, 1.0, 4.0, 8192
        turns = old_length * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = (1 - kept) * frequencies / stretch + kept * frequencies
    return torch.outer(torch.arange(config.block_size).float(), frequencies)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each neighbouring pair of ``x`` (batch, head, length, width) by its angle, in float32."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2).type_as(x)


class Attention(nn.Module):
    """Causal self-attention with rotary positions; several heads share one head of keys and values."""

    def __init__(self, config: Llama3Config) -> None:
        super().__init__()
        self.n_head, self.n_kv_head = config.n_head, config.n_kv_head
        self.head_width = config.n_embd // config.n_head
        rows = (config.n_head + 2 * config.n_kv_head) * self.head_width
        self.c_attn = nn.Linear(config.n_embd, rows, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.c_attn(x).view(batch, length, -1, self.head_width).transpose(1, 2)
        q, k, v = qkv.split((self.n_head, self.n_kv_head, self.n_kv_head), dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (part.repeat_interleave(self.n_head // self.n_kv_head, dim=1) for part in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(self.head_width)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        shares = F.softmax(scores.float().masked_fill(future, -math.inf), dim=-1).type_as(x)
        out: Tensor = self.c_proj((shares @ v).transpose(1, 2).reshape(batch, length, width))
        return out


class MLP(nn.Module):
    """SwiGLU: ``c_fc2`` gates ``c_fc``."""

    def __init__(self, config: Llama3Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.n_ffn, bias=False)
        self.c_fc2 = nn.Linear(config.n_embd, config.n_ffn, bias=False)
        self.c_proj = nn.Linear(config.n_ffn, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(self.c_fc(x) * F.silu(self.c_fc2(x)))
        return out


class Block(nn.Module):
    """One transformer block, normalised before each half."""

    def __init__(self, config: Llama3Config) -> None:
        super().__init__()
        self.ln_1 = RMSNorm(config.n_embd, config.norm_eps)
        self.attn = Attention(config)
        self.ln_2 = RMSNorm(config.n_embd, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x), cos, sin)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Transformer(nn.Module):
    """Tokens (batch, length) to what the head is given; the rotary tables are not in the state dict."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Llama3Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = RMSNorm(config.n_embd, config.norm_eps)
        angles = rotary_angles(config)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x: Tensor = self.wte(tokens)
        for block in self.h:
            x = block(x, self.cos[:length], self.sin[:length])
        out: Tensor = self.ln_f(x)
        return out


class Llama3(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocab_size)."""

    def __init__(self, config: Llama3Config) -> None:
        super().__init__()
        self.transformer = Transformer(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # Every block adds two outputs to the residual stream.
                scale = math.sqrt(2 * config.n_layer) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.transformer(tokens))
        return logits


def of_llmc(config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> Llama3Config:
    """Return the hyperparameters of a model file of llm.c.

    llm.c's own header cuts floats to whole numbers, so the epsilon may be missing, and the width of the MLP
    is that of its tensor, whatever multiplier the file names.
    """
    known = {key: value for key, value in config.items() if key in Llama3Config.__dataclass_fields__}
    found = Llama3Config(**known)
    width = shapes["transformer.h.0.mlp.c_fc.weight"][0]
    if found.n_ffn == width:
        return found
    return dataclasses.replace(found, ffn_dim_multiplier=(width + 0.25) / (8 * found.n_embd // 3))


_SMALL = Llama3Config(
    block_size=64, vocab_size=0, n_layer=4, n_head=4, n_kv_head=2, n_embd=128, multiple_of=32
)

ENTRY = Entry(
    architecture="llama3",
    description="Train a LLaMA-3.",
    sizes={
        "small": _SMALL,
        "tiny": dataclasses.replace(_SMALL, block_size=16, n_layer=2, n_embd=16, multiple_of=8),
        "1B": Llama3Config(),
    },
    of_llmc=of_llmc,
    build=Llama3,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line (or ``arguments``) says; return the exit status."""
    return run(ENTRY, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
