"""What is worth knowing and no error: told to the caller, or logged; library code prints nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["Notes", "speaker"]

Notes = Callable[[str], None]
"""Told, in one sentence each, what was decided or passed over, and why."""


def speaker(notes: Notes | None) -> Notes:
    """Return ``notes``, or the log ``ckptio.training``, whose warnings Python shows by default."""
    return notes if notes is not None else logging.getLogger("ckptio.training").warning
