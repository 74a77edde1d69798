"""What a model's folder has beside the weights, when a conversion makes one."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptio.adapters import Annotated
from ckptio.checkpoint import Checkpoint
from ckptio.dtypes import DType
from ckptio.errors import OptionError, Problem
from ckptio.folders import (
    CONFIG,
    GENERATION,
    NAMED_WEIGHTS,
    FolderOutput,
    folder_config,
    generation_files,
)
from ckptio.models import Recognised, assumed_for_hf, config_to_hf, retyped
from ckptio.tokenizer import FURTHER_TEMPLATES, NO_TOKENIZER, TOKENIZERS, tokenizer_files
from ckptio.weights import INDEX_SUFFIX, WEIGHTS

__all__ = ["FolderPlan", "plan_folder"]

_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class FolderPlan:
    """The checkpoint with the config of its folder, and what else comes into the folder or leaves it.

    ``companions`` are files to copy and ``made`` those to make, by name; ``replaced`` are names that go where
    they are. ``notes`` say what is missing, and what stays of an old model.
    """

    checkpoint: Checkpoint
    companions: tuple[Path, ...] = ()
    made: Mapping[str, bytes] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def make_output(self, target: Path, **options: Any) -> FolderOutput:
        """Return the output with these files, as `ckptio.Output` is made."""
        return FolderOutput(
            target, companions=self.companions, made=self.made, replaced=self.replaced, **options
        )


def plan_folder(
    checkpoint: Checkpoint,
    own: Path | None,
    target: Path,
    *,
    suffixes: tuple[str, ...],
    recognised: Recognised | None,
    cast_to: DType | None,
    tokenizer: Path | None = None,
) -> FolderPlan:
    """Return what goes into a folder of transformers, ``target``, in a format of these ``suffixes``.

    ``recognised`` is the model that the checkpoint is, in the layout ``hf``, and None for any other. A
    config that transformers wrote stays as it was but for the dtype; else one is made. The files of the
    tokenizer are those in ``tokenizer``, else those in ``own``, the source's folder where it has one, and
    else what the checkpoint makes of its own.

    In a target that exists, a new config takes the old generation config along, and a new tokenizer all of
    the old one. An old tokenizer stays where no new one comes: it may be all that there is.

    Raises `OptionError` for a ``tokenizer`` of a folder without a config.
    """
    old = frozenset(os.listdir(target)) if target.is_dir() else frozenset()
    config = folder_config(checkpoint)
    problems: list[Problem] = []
    assumed: Mapping[str, Any] = {}
    stays = {
        name for name in old.intersection(WEIGHTS) if not name.removesuffix(INDEX_SUFFIX).endswith(suffixes)
    }
    if config is not None:
        config = retyped(config, cast_to) if cast_to is not None else config
        config = {key: value for key, value in config.items() if key != NAMED_WEIGHTS}
    elif recognised is None:
        if tokenizer is not None:
            raise OptionError("--tokenizer: a folder without config.json has no tokenizer; pass --layout hf")
        return FolderPlan(checkpoint, notes=_kept(old & {CONFIG} | stays))
    else:
        tied = _HEAD not in checkpoint.specs
        known = checkpoint.metadata.get("config") or {}
        assumed = assumed_for_hf(known, recognised)
        config, problems = config_to_hf(known, recognised, _dtype(checkpoint), tied=tied)
    copied, made = _beside(checkpoint, own, tokenizer)
    if GENERATION not in {path.name for path in copied} | made.keys():
        made |= _generation(config)
    present = {path.name for path in copied} | made.keys()
    replaced = {GENERATION, *(TOKENIZERS if present & TOKENIZERS else ())} - present
    removed = ", ".join(sorted(old & replaced))
    return FolderPlan(
        Annotated(checkpoint, metadata={**checkpoint.metadata, "config": config}),
        tuple(copied),
        made,
        frozenset(replaced),
        (
            *_assumed(assumed),
            *(() if present & TOKENIZERS else (NO_TOKENIZER,)),
            *((f"removed from TARGET, as the old model's: {removed}",) if removed else ()),
            *_not_copied(tokenizer or own),
            *_kept(old & {*TOKENIZERS, FURTHER_TEMPLATES} - present - replaced | stays),
        ),
        tuple(problems),
    )


def _kept(names: Collection[str]) -> tuple[str, ...]:
    return (f"kept in TARGET as it was: {', '.join(sorted(names))}",) if names else ()


def _not_copied(place: Path | None) -> Iterator[str]:
    if place is not None and (place / FURTHER_TEMPLATES).is_dir():
        yield f"not copied, to be done by hand: {place / FURTHER_TEMPLATES}"


def _beside(
    checkpoint: Checkpoint, own: Path | None, tokenizer: Path | None
) -> tuple[list[Path], dict[str, bytes]]:
    """Return the files to copy, and those that the checkpoint makes: only what is not there to copy."""
    copied = generation_files(own) if own is not None else []
    place = tokenizer if tokenizer is not None else own
    copied += tokenizer_files(place) if place is not None else []
    names = {path.name for path in copied}
    made = {name: content for name, content in checkpoint.companions().items() if name not in names}
    if tokenizer is not None:
        made = {name: content for name, content in made.items() if name not in TOKENIZERS}
    return copied, made


def _assumed(config: Mapping[str, Any]) -> Iterator[str]:
    if config:
        told = ", ".join(f"{key}={value}" for key, value in config.items())
        yield f"assumed, as nobody says it: {told}; pass --config where the model has others"


def _dtype(checkpoint: Checkpoint) -> DType | None:
    """Return the dtype that most elements have: norms may well be wider than all else."""
    elements: Counter[DType] = Counter()
    for spec in checkpoint.specs.values():
        if spec.dtype.is_float:
            elements[spec.dtype] += spec.size
    return elements.most_common(1)[0][0] if elements else None


def _generation(config: Mapping[str, Any]) -> dict[str, bytes]:
    """Return ``generation_config.json``, where the tokens that begin and end a text are known."""
    known = {key: config[key] for key in ("bos_token_id", "eos_token_id") if config.get(key) is not None}
    if not known:
        return {}
    content = {"_from_model_config": True, **known}
    return {GENERATION: json.dumps(content, indent=2).encode() + b"\n"}
