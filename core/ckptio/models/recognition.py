"""Which architecture and layout a checkpoint is of: the table that its names fit best, then its shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from ckptio.checkpoint import Checkpoint
from ckptio.errors import OptionError, Problem
from ckptio.models.config import config_problems, normalise_config
from ckptio.models.gpt2 import GPT2
from ckptio.models.llama3 import LLAMA3
from ckptio.models.matching import Matching, Recognised, canonical_layouts, lay_over
from ckptio.models.qwen2 import QWEN2
from ckptio.models.tables import Architecture

__all__ = ["architecture", "contradictions", "embeddings", "known_layouts", "match", "recognise"]

_ARCHITECTURES = (GPT2, LLAMA3, QWEN2)


def architecture(name: str) -> Architecture:
    """Return the table of one architecture; `OptionError` that lists the known ones."""
    for each in _ARCHITECTURES:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in _ARCHITECTURES)
    raise OptionError(f"unknown architecture {name!r}; known: {known}")


def known_layouts() -> tuple[str, ...]:
    """Return the names of all layouts."""
    return tuple(dict.fromkeys(layout for each in _ARCHITECTURES for layout in each.layouts))


def embeddings() -> tuple[str, ...]:
    """Return the names that the embedding of tokens has, in any architecture and layout."""
    tables = [each.in_layout(layout) for each in _ARCHITECTURES for layout in _table_layouts(each)]
    return tuple(dict.fromkeys(table.rows[0].name for table in tables))


def match(checkpoint: Checkpoint, layout: str | None = None) -> Matching:
    """Lay a checkpoint over the table that its names fit best, then its shapes.

    Only the tables of ``layout`` count where it is given. When several fit to the last shape, as they do
    for a model without elements, they are ``rivals``.
    """
    found = [
        lay_over(each, checkpoint, own)
        for each in _ARCHITECTURES
        for own in _table_layouts(each)
        if layout is None or layout in (canonical_layouts(each) if own is None else (own,))
    ]
    nearest = min(found, key=lambda matching: matching.distance)
    if sum(nearest.distance) > -len(nearest.rows):
        return nearest
    fitting = [each for each in found if each.distance == nearest.distance]
    rivals = tuple(f"{each.architecture.name} as {each.layout or 'llmc'}" for each in fitting)
    return dataclasses.replace(nearest, rivals=rivals if len(rivals) > 1 else ())


def recognise(checkpoint: Checkpoint) -> Recognised | None:
    """Return what model a checkpoint is, or None when its names and shapes are of no known one.

    Only the header is looked at: ``layouts`` are those whose programs use exactly these names. A
    checkpoint with the names of none of them (a mask in some layers only) has no layouts.
    """
    found = match(checkpoint)
    return None if found.problems() else found.recognised()


def contradictions(checkpoint: Checkpoint, keys: Collection[str]) -> list[Problem]:
    """Return what the config says, under ``keys`` of the one spelling, against the shapes of the model."""
    found = recognise(checkpoint) if keys else None
    if found is None:
        return []
    problems = config_problems(normalise_config(checkpoint.metadata.get("config") or {}), found.sizes)
    return [each for each in problems if each.where.removeprefix("config.") in keys]


def _table_layouts(architecture: Architecture) -> tuple[str | None, ...]:
    canonical: tuple[str | None, ...] = (None,) if canonical_layouts(architecture) else ()
    return (*canonical, *architecture.prefixes)
