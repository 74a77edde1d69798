"""What the two entries share: the model to start from, the optimizer, the loop, saving and resuming."""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# cuBLAS reads it once; without it, torch's deterministic mode refuses to multiply matrices on a GPU.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy as np
import torch
from flags import Entry, learning_rate, make_parser
from tokens import Batches, Tokens, read_text, read_tokens
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import ckptio
import ckptio.torch
from ckptio.models import recognise
from ckptio.training import CheckpointOptions, TrainerState, resume_checkpoint, save_checkpoint

__all__ = ["load_llmc", "run"]


def load_llmc(entry: Entry, path: Path, **switches: bool) -> tuple[nn.Module, Any]:
    """Return the model in a file of llm.c, and its hyperparameters.

    Raises `OptionError` for a model of another architecture.
    """
    with ckptio.open(path, checkpoint_format="llmc") as checkpoint:
        found = recognise(checkpoint)
        if found is None or found.architecture != entry.architecture:
            other = "something else" if found is None else found.architecture
            raise ckptio.OptionError(f"--llmc_filepath {path}: holds {other}, not {entry.architecture}")
        shapes = {name: spec.shape for name, spec in checkpoint.specs.items()}
        config = entry.of_llmc(checkpoint.metadata["config"], shapes)
    model = entry.build(config, **switches)
    # A file of llm.c has every parameter, but not the masks, which the model has made itself.
    model.load_state_dict(ckptio.torch.load(path, checkpoint_format="llmc"), strict=False)
    return model, config


def make_model(entry: Entry, given: argparse.Namespace, tokens: Tokens) -> tuple[nn.Module, Any]:
    """Return the model to start from, in place and of the wanted dtype, and its hyperparameters.

    ``--dtype bfloat16`` means the parameters themselves, and so AdamW's moments and the files.
    """
    switches = {name: getattr(given, name) for name in entry.switches}
    if given.llmc_filepath is not None:
        model, config = load_llmc(entry, given.llmc_filepath, **switches)
    else:
        config = entry.sizes[given.model]
        if not config.vocab_size:
            config = dataclasses.replace(config, vocab_size=tokens.vocab_size)
        model = entry.build(config, **switches)
    model.to(given.device)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, given.dtype))
    return model, config


def make_optimizer(model: nn.Module, given: argparse.Namespace) -> torch.optim.Optimizer:
    """Return AdamW, which decays matrices only, or plain SGD."""
    parameters = list(model.parameters())
    if given.optimizer == "sgd":
        return torch.optim.SGD(parameters, given.learning_rate)
    groups = [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": given.weight_decay},
        {"params": [each for each in parameters if each.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, given.learning_rate, betas=(0.9, 0.95))


@dataclass(frozen=True)
class Trainer:
    """A model and what moves it: one call of `step` is one update, by ``passes`` batches."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Batches
    config: Any
    batch_size: int
    passes: int
    device: str

    def step(self, rate: float, position: int) -> float:
        """Train on the sequences from ``position`` on; return the mean loss of the batches."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        mean = 0.0
        for start in range(position, position + self.sequences, self.batch_size):
            loss = self._loss(start) / self.passes
            torch.autograd.backward(loss)
            mean += loss.item()
        self.optimizer.step()
        return mean

    @property
    def sequences(self) -> int:
        """Sequences per step."""
        return self.batch_size * self.passes

    def _loss(self, position: int) -> Tensor:
        inputs, targets = self.batches.take(position, self.batch_size, self.config.vocab_size)
        logits = self.model(inputs.to(self.device))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.to(self.device).flatten())


def make_trainer(entry: Entry, given: argparse.Namespace) -> Trainer:
    """Return all that the flags describe.

    Raises `OptionError` for a sequence that the model does not take, and for a step of half a batch.
    """
    tokens = read_tokens(given.input_bin) if given.input_bin else read_text()
    model, config = make_model(entry, given, tokens)
    length = given.sequence_length or min(64, config.block_size)
    if not 0 < length <= config.block_size:
        raise ckptio.OptionError(
            f"--sequence_length {length}: the model takes 1 to {config.block_size} tokens"
        )
    total = given.total_batch_size or given.batch_size * length
    if given.batch_size < 1 or total % (given.batch_size * length):
        raise ckptio.OptionError(
            f"--total_batch_size {total}: not a multiple of batch_size {given.batch_size} times "
            f"sequence_length {length}"
        )
    return Trainer(
        model,
        make_optimizer(model, given),
        Batches(tokens, length),
        config,
        given.batch_size,
        total // (given.batch_size * length),
        given.device,
    )


def train(trainer: Trainer, options: CheckpointOptions, given: argparse.Namespace) -> None:
    """Go on from the checkpoint that ``options`` name, if any, to the last step."""
    model, optimizer = trainer.model, trainer.optimizer
    state = resume_checkpoint(
        options,
        model,
        optimizer,
        config=dataclasses.asdict(trainer.config),
        allow=given.allow,
        saved_batch_size=given.batch_size,
        notes=tell,
    )
    if state.global_step >= given.num_iteration:
        tell(f"step {state.global_step} is done; --num_iteration {given.num_iteration} leaves nothing to do")
    while state.global_step < given.num_iteration:
        began = time.perf_counter()
        rate = learning_rate(state.global_step, given)
        loss = trainer.step(rate, state.consumed_samples)
        state = dataclasses.replace(
            state,
            global_step=state.global_step + 1,
            consumed_samples=state.consumed_samples + trainer.sequences,
            last_lr=rate,
            last_loss=loss,
            best_loss=min(state.best_loss, loss),
        )
        seconds = time.perf_counter() - began
        report(state, given.num_iteration, seconds, trainer.sequences * trainer.batches.length / seconds)
        if options.should_save(state.global_step):
            save_checkpoint(options, state, model, optimizer, notes=tell)


def report(state: TrainerState, steps: int, seconds: float, speed: float) -> None:
    """Print the log line of a step, as llm.c and InfiniTrain have it; ``speed`` is in tokens per second."""
    loss = f"train loss {state.last_loss:.6f} | lr {state.last_lr:.2e}"
    line = f"step {state.global_step:4d}/{steps} | {loss} | ({seconds * 1e3:.2f} ms | {speed:.0f} tok/s)"
    print(line, flush=True)  # noqa: T201


def tell(note: str) -> None:
    """Print a note on standard error, so that standard output is the log."""
    print(note, file=sys.stderr)  # noqa: T201


def make_deterministic(seed: int) -> None:
    """Make two runs of the same flags the same run, to the last bit."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def run(entry: Entry, arguments: Sequence[str] | None) -> int:
    """Train as ``arguments`` say; return the exit status, 1 after an error on standard error."""
    given = make_parser(entry).parse_args(arguments)
    make_deterministic(given.seed)
    try:
        options = CheckpointOptions.from_args(given)
        train(make_trainer(entry, given), options, given)
    except (ckptio.CkptError, OSError) as error:
        tell(f"error: {error}")
        return 1
    return 0
