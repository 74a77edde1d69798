"""What a model's folder has beside the weights, when a conversion makes one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptio.adapters import Annotated
from ckptio.checkpoint import Checkpoint
from ckptio.dtypes import DType
from ckptio.errors import Problem
from ckptio.folders import GENERATION, TOKENIZERS, beside
from ckptio.models import Recognised, config_to_hf, retyped

__all__ = ["FolderPlan", "plan_folder"]

_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class FolderPlan:
    """The checkpoint with the config of its folder, files to copy, files to make, and what is missing."""

    checkpoint: Checkpoint
    companions: tuple[Path, ...] = ()
    made: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def plan_folder(
    checkpoint: Checkpoint, source: Path, recognised: Recognised | None, cast_to: DType | None
) -> FolderPlan:
    """Return what goes into a folder of transformers.

    ``recognised`` is the model that the checkpoint is, in the layout ``hf``, and None for any other. A
    config that transformers wrote stays as it was but for the dtype; else one is made.
    """
    config: Mapping[str, Any] = checkpoint.metadata.get("config") or {}
    problems: list[Problem] = []
    if "model_type" in config:
        config = retyped(config, cast_to) if cast_to is not None else config
    elif recognised is None:
        return FolderPlan(checkpoint)
    else:
        tied = _HEAD not in checkpoint.specs
        config, problems = config_to_hf(config, recognised, _dtype(checkpoint), tied=tied)
    companions = tuple(beside(source))
    copied = {path.name for path in companions}
    made = {} if GENERATION in copied else _generation(config)
    missing = "no tokenizer: SOURCE has none of its files; add those of the model"
    return FolderPlan(
        Annotated(checkpoint, metadata={**checkpoint.metadata, "config": config}),
        companions,
        made,
        () if copied & TOKENIZERS else (missing,),
        tuple(problems),
    )


def _dtype(checkpoint: Checkpoint) -> DType | None:
    counts = Counter(spec.dtype for spec in checkpoint.specs.values() if spec.dtype.is_float)
    return counts.most_common(1)[0][0] if counts else None


def _generation(config: Mapping[str, Any]) -> dict[str, bytes]:
    """Return ``generation_config.json``, where the tokens that begin and end a text are known."""
    known = {key: config[key] for key in ("bos_token_id", "eos_token_id") if config.get(key) is not None}
    if not known:
        return {}
    content = {"_from_model_config": True, **known}
    return {GENERATION: json.dumps(content, indent=2).encode() + b"\n"}
