"""Save, resume, prune: what a training loop calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ckptio.training.notes import Notes
from ckptio.training.options import CheckpointOptions
from ckptio.training.state import TrainerState

__all__ = ["resume_checkpoint", "save_checkpoint"]


def resume_checkpoint(
    options: CheckpointOptions,
    model: Any,
    optimizer: Any = None,
    *,
    extra: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
    verify: bool = False,
    saved_batch_size: int | None = None,
    notes: Notes | None = None,
) -> TrainerState:
    """Put a run back to where its checkpoint left it, or start it afresh; call it once, before step 1."""
    raise NotImplementedError


def save_checkpoint(
    options: CheckpointOptions,
    state: TrainerState,
    model: Any,
    optimizer: Any = None,
    *,
    extra: Mapping[str, Any] | None = None,
    protect: Collection[int | Path] = (),
    notes: Notes | None = None,
) -> Path:
    """Save one step directory, whole or not at all, then prune; return its path."""
    raise NotImplementedError
