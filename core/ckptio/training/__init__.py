"""Save, resume, prune: training that goes on as if it had never stopped, in any format.

A training entry takes the flags of `CheckpointOptions`, calls `resume_checkpoint` once before its loop,
asks ``options.should_save(step)`` after each step, and calls `save_checkpoint` when it says so. Models and
optimizers are anything with ``state_dict()`` and ``load_state_dict()``, or plain dicts of arrays; torch
is imported only for what is torch's.
"""

from __future__ import annotations

from ckptio.training.manager import resume_checkpoint, save_checkpoint
from ckptio.training.notes import Notes
from ckptio.training.options import CheckpointOptions
from ckptio.training.prune import prune_checkpoints
from ckptio.training.state import TrainerState
from ckptio.training.steps import Step, find_step, latest_checkpoint, list_checkpoints, open_step

__all__ = [
    "CheckpointOptions",
    "Notes",
    "Step",
    "TrainerState",
    "find_step",
    "latest_checkpoint",
    "list_checkpoints",
    "open_step",
    "prune_checkpoints",
    "resume_checkpoint",
    "save_checkpoint",
]
