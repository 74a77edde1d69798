"""One checkpoint over several: shards, or files that belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptio.checkpoint import CHUNK_BYTES, Checkpoint, Span
from ckptio.described import DescribedCheckpoint
from ckptio.errors import Problem

__all__ = ["JoinedCheckpoint"]


class JoinedCheckpoint(DescribedCheckpoint):
    """One checkpoint over several that have no tensor in common, in their order; it owns them.

    ``aliases`` and ``metadata`` are added to those of the parts, and go before them.
    """

    def __init__(
        self,
        parts: Sequence[Checkpoint],
        *,
        aliases: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.parts = tuple(parts)
        self._home = {name: part for part in parts for name in part.specs}
        super().__init__(
            {name: spec for part in parts for name, spec in part.specs.items()},
            aliases=_merged((part.aliases for part in parts), aliases),
            leaves=_merged((part.leaves for part in parts), None),
            metadata=_merged((part.metadata for part in parts), None) if metadata is None else metadata,
        )

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        return self._home[name].chunks(name, max_bytes)

    def spans(self, name: str) -> Sequence[Span] | None:
        return self._home[name].spans(name)

    def crc32(self, name: str) -> int | None:
        return self._home[name].crc32(name)

    def omissions(self) -> Sequence[Problem]:
        return [problem for part in self.parts for problem in part.omissions()]

    def reads(self, path: Path) -> bool:
        return any(part.reads(path) for part in self.parts)

    def check_unchanged(self) -> None:
        for part in self.parts:
            part.check_unchanged()

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _merged(maps: Iterable[Mapping[str, Any]], first: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(first or {})
    for each in maps:
        for key, value in each.items():
            found.setdefault(key, value)
    return found
