"""The flags of the two entries, and what is peculiar to each."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ckptio.training import CheckpointOptions

__all__ = ["Entry", "learning_rate", "make_parser"]


@dataclass(frozen=True)
class Entry:
    """What is peculiar to one architecture.

    ``sizes`` are the choices of ``--model``, the first being the default (vocab_size 0: that of the
    tokens); ``of_llmc`` makes hyperparameters of an llm.c file's ``config`` and the shapes of its tensors;
    ``build`` makes a model of them, and takes each of ``switches``, further flags with their help.
    """

    architecture: str
    description: str
    sizes: Mapping[str, Any]
    of_llmc: Callable[[Mapping[str, Any], Mapping[str, Sequence[int]]], Any]
    build: Callable[..., nn.Module]
    switches: Mapping[str, str] = field(default_factory=dict)


def make_parser(entry: Entry) -> argparse.ArgumentParser:
    """Return the parser of all flags, those of checkpoints included."""
    parser = argparse.ArgumentParser(
        description=entry.description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--input_bin", type=Path, help="token file of llm.c (default: a short text, byte by byte)")
    add("--llmc_filepath", type=Path, help="model file of llm.c to start from")
    add("--model", choices=list(entry.sizes), default=next(iter(entry.sizes)), help="size of a new model")
    add("--num_iteration", type=int, default=100, help="steps to train")
    add("--batch_size", type=int, default=8, help="sequences per forward pass")
    add("--sequence_length", type=int, help="tokens per sequence (default: 64, or the model's most)")
    add("--total_batch_size", type=int, help="tokens per step (default: batch_size * sequence_length)")
    add("--learning_rate", type=float, default=1e-3, help="the largest learning rate")
    add("--warmup_iteration", type=int, default=10, help="steps in which the learning rate rises to it")
    add("--schedule", choices=["cosine", "linear", "constant"], default="cosine", help="how it falls again")
    add("--optimizer", choices=["adamw", "sgd"], default="adamw")
    add("--weight_decay", type=float, default=0.1, help="of matrices, by AdamW")
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the parameters")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--allow", action="append", default=[], metavar="WORD", help="resume in spite of a difference")
    add("--seed", type=int, default=1337, help="of all random generators")
    for name, text in entry.switches.items():
        add(f"--{name}", action="store_true", help=text)
    CheckpointOptions.add_arguments(parser)
    return parser


def learning_rate(step: int, given: argparse.Namespace) -> float:
    """Return the learning rate of ``step``, counted from 0: a function of it alone, so nothing is stored."""
    if step < given.warmup_iteration:
        return float(given.learning_rate * (step + 1) / given.warmup_iteration)
    if given.schedule == "constant":
        return float(given.learning_rate)
    done = (step - given.warmup_iteration) / max(1, given.num_iteration - given.warmup_iteration)
    left = 0.5 * (1 + math.cos(math.pi * done)) if given.schedule == "cosine" else 1 - done
    return float(given.learning_rate * left)
