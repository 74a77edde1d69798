"""Which step directories of a run stay, and the removal of the others."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ckptio.training.notes import Notes

__all__ = ["prune_checkpoints"]


def prune_checkpoints(
    directory: Path,
    keep: int,
    protect: Collection[int | Path] = (),
    *,
    dry_run: bool = False,
    notes: Notes | None = None,
) -> list[Path]:
    """Remove all complete steps but ``keep``; return those that were (or, with ``dry_run``, would be) removed.

    ``protect`` are steps (numbers or directories) that stay in any case and count among the ``keep``; the
    newest ones fill the rest. ``keep`` 0 keeps all. Incomplete steps and everything else are not touched.
    """
    raise NotImplementedError
