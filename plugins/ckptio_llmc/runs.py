"""Run directories of llm.c's training programs.

``model_%08d.bin`` is the model after a step, and the empty ``DONE_%08d`` is written when all files of that
step are there (source: ``write_checkpoint`` in ``train_gpt2.cu``, which resumes from the highest one).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["newest_model"]

_MODEL = re.compile(r"model_([0-9]{8})\.bin")


def newest_model(names: Iterable[str]) -> str | None:
    """Return which of the ``names`` in a directory is the model of the last finished step, if one is."""
    listed = set(names)
    steps = [found[1] for found in map(_MODEL.fullmatch, listed) if found and f"DONE_{found[1]}" in listed]
    return f"model_{max(steps)}.bin" if steps else None
