"""A checkpoint whose description is known when it is made: the base of those that parse a header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptio.checkpoint import Checkpoint, TensorSpec

__all__ = ["DescribedCheckpoint"]


class DescribedCheckpoint(Checkpoint):
    """Holds specs, ties, leaves and metadata; a subclass adds ``chunks`` and what else it can."""

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        *,
        aliases: Mapping[str, str] | None = None,
        leaves: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._specs = specs
        self._aliases, self._leaves, self._metadata = aliases or {}, leaves or {}, metadata or {}

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return self._specs

    @property
    def aliases(self) -> Mapping[str, str]:
        return self._aliases

    @property
    def leaves(self) -> Mapping[str, Any]:
        return self._leaves

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._metadata
