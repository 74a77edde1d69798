"""Checkpoints over checkpoints that change names, ties, leaves or metadata, and no byte.

Each reads nothing until it is asked, and keeps the spans of its base, so that the kernel still does
the copying. What changes the tensors themselves is in ``ckptio.transforms``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptio.checkpoint import CHUNK_BYTES, Checkpoint, Span
from ckptio.described import DescribedCheckpoint
from ckptio.errors import Problem

__all__ = ["Adapter", "Annotated", "View", "expand_aliases", "rename", "select"]


class Adapter(DescribedCheckpoint):
    """A checkpoint that is its base in everything; subclasses change one thing."""

    def __init__(self, base: Checkpoint) -> None:
        super().__init__(base.specs, aliases=base.aliases, leaves=base.leaves, metadata=base.metadata)
        self.base = base

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        return self.base.chunks(name, max_bytes)

    def spans(self, name: str) -> Sequence[Span] | None:
        return self.base.spans(name)

    def companions(self) -> Mapping[str, bytes]:
        return self.base.companions()

    def omissions(self) -> Sequence[Problem]:
        return self.base.omissions()

    def reads(self, path: Path) -> bool:
        return self.base.reads(path)

    def check_unchanged(self) -> None:
        self.base.check_unchanged()

    def close(self) -> None:
        self.base.close()


class View(Adapter):
    """Other names for the tensors of the base: ``stored`` maps each new name to a stored one."""

    def __init__(
        self, base: Checkpoint, stored: Mapping[str, str], aliases: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(base)
        self._stored = stored
        self._aliases = aliases or {}
        self._specs = {
            new: dataclasses.replace(base.specs[old], name=new) if new != old else base.specs[old]
            for new, old in stored.items()
        }

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        return self.base.chunks(self._stored[name], max_bytes)

    def spans(self, name: str) -> Sequence[Span] | None:
        return self.base.spans(self._stored[name])

    def crc32(self, name: str) -> int | None:
        return self.base.crc32(self._stored[name])


def select(base: Checkpoint, names: Collection[str]) -> Checkpoint:
    """Keep ``names`` alone, in file order; where a stored name goes, its first kept alias stands in."""
    kept = set(names)
    stored: dict[str, str] = {}
    aliases: dict[str, str] = {}
    stands_for: dict[str, str] = {}
    for name in base.names():
        if name not in kept:
            continue
        old = base.canonical(name)
        if old in stands_for:
            aliases[name] = stands_for[old]
        else:
            stored[name] = old
            stands_for[old] = name
    return View(base, stored, aliases)


def rename(base: Checkpoint, names: Mapping[str, str]) -> Checkpoint:
    """Give new names (``names``: old to new) to tensors and aliases; the others keep theirs.

    Raises ValueError when two would come to have one name.
    """
    stored = {names.get(old, old): old for old in base.specs}
    aliases = {names.get(alias, alias): names.get(old, old) for alias, old in base.aliases.items()}
    if len(stored.keys() | aliases.keys()) < len(base):
        raise ValueError("two tensors would come to have one name")
    return View(base, stored, aliases)


def expand_aliases(base: Checkpoint) -> Checkpoint:
    """Make every alias a full tensor, for a target that has no ties."""
    return View(base, {name: base.canonical(name) for name in base.names()}) if base.aliases else base


class Annotated(Adapter):
    """Other leaves, metadata or ties than the base's; an alias that the base stores is hidden there."""

    def __init__(
        self,
        base: Checkpoint,
        *,
        metadata: Mapping[str, Any] | None = None,
        leaves: Mapping[str, Any] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(base)
        if metadata is not None:
            self._metadata = metadata
        if leaves is not None:
            self._leaves = leaves
        if aliases is not None:
            self._aliases = aliases
        hidden = self._aliases.keys() & base.specs.keys()
        self._specs = (
            {name: spec for name, spec in base.specs.items() if name not in hidden} if hidden else base.specs
        )

    def crc32(self, name: str) -> int | None:
        return self.base.crc32(name)
