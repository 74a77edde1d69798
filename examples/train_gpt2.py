"""Train a GPT-2, and save and resume it in any checkpoint format: ``python examples/train_gpt2.py``.

The model has the names and shapes of llm.c's ``train_gpt2.py``, so its state dict is what llm.c and
InfiniTrain read: weights are (out, in), the output head is the embedding itself, and each block keeps its
causal mask as the buffer ``attn.bias``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flags import Entry
from loop import run
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["GPT2", "GPT2Config", "main"]


@dataclass(frozen=True)
class GPT2Config:
    """Hyperparameters, in the spelling of ``metadata["config"]``."""

    block_size: int = 1024
    vocab_size: int = 50257
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768


class Attention(nn.Module):
    """Causal self-attention; the rows of ``c_attn`` are all of Q, then K, then V."""

    bias: Tensor

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("bias", mask.view(1, 1, config.block_size, config.block_size))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.n_head, width // self.n_head)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(heads[-1])
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, -math.inf)
        mixed = F.softmax(scores, dim=-1) @ v
        out: Tensor = self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class MLP(nn.Module):
    """Two layers with GELU (the tanh form) between them."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """One transformer block, normalised before each half."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class Transformer(nn.Module):
    """Tokens (batch, length) to what the head is given."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        out: Tensor = self.ln_f(x)
        return out


class GPT2(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocab_size).

    An untied head is a matrix of its own that only starts equal to the embedding; llm.c's model files
    cannot hold such a model.
    """

    def __init__(self, config: GPT2Config, untied_head: bool = False) -> None:
        super().__init__()
        self.transformer = Transformer(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self._initialise(config.n_layer)
        wte = self.transformer.wte.weight
        self.lm_head.weight = nn.Parameter(wte.detach().clone()) if untied_head else wte

    def _initialise(self, n_layer: int) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                # Every block adds two outputs to the residual stream.
                scale = math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.transformer(tokens))
        return logits


def of_llmc(config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> GPT2Config:
    """Return the hyperparameters of a model file of llm.c; its header has them all."""
    return GPT2Config(**{key: config[key] for key in GPT2Config.__dataclass_fields__})


ENTRY = Entry(
    architecture="gpt2",
    description="Train a GPT-2.",
    sizes={
        "small": GPT2Config(block_size=64, vocab_size=0, n_layer=4, n_head=4, n_embd=128),
        "tiny": GPT2Config(block_size=16, vocab_size=0, n_layer=2, n_head=2, n_embd=16),
        "124M": GPT2Config(),
    },
    of_llmc=of_llmc,
    build=GPT2,
    switches={"untied_head": "make the output head a matrix of its own, apart from the embedding"},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line (or ``arguments``) says; return the exit status."""
    return run(ENTRY, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
