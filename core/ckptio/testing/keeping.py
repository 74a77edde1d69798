"""Promises about what is beside the elements: names, their order, ties, leaves and metadata."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ckptio import Checkpoint, MemoryCheckpoint
from ckptio.leaves import same_leaf
from ckptio.sidecar import sidecar_path
from ckptio.testing.harness import Harness, fingerprint, fingerprints
from ckptio.testing.patterns import bit_patterns

__all__ = ["KeepingPromises"]

NAMES = {
    "that nest": (
        *("b.weight", "a.weight", "layer/10/kernel", "layer/9/kernel", "tilde~0slash~1in"),
        *("Größe.重み.\N{GREEK SMALL LETTER OMEGA}", "with space", "UPPER", "n" * 300, "d/" * 20 + "deep"),
    ),
    "that do not nest": ("a", "a/b", "a/b/c", "/leading", "trailing/", "two//slashes", "~", "x~2", "..", "."),
}


class KeepingPromises(Harness):
    """Names, ties, leaves and metadata come back: in the file where declared, else by the sidecar."""

    @pytest.mark.parametrize("kind", NAMES)
    def test_names_are_kept(self, kind: str, tmp_path: Path) -> None:
        self.needs_free_names()
        checkpoint = self._named(NAMES[kind])
        self.save(checkpoint, tmp_path / "file")
        with self.opened_alone(tmp_path / "file") as read:
            assert fingerprints(read) == {n: fingerprint(checkpoint.read(n)) for n in NAMES[kind]}

    def test_the_order_of_names_is_kept_or_always_the_same(self, tmp_path: Path) -> None:
        self.needs_free_names()
        names = NAMES["that nest"]
        orders = []
        for number, given in enumerate((names, names[::-1])):
            self.save(self._named(given), tmp_path / f"{number}")
            with self.opened_alone(tmp_path / f"{number}") as read:
                orders.append(tuple(read.names()))
        assert orders == [names, names[::-1]] or orders[0] == orders[1]

    def test_metadata_is_kept_as_declared(self, tmp_path: Path) -> None:
        self.needs_writing()
        checkpoint = self.rich_checkpoint()
        self.save(checkpoint, tmp_path / "file")
        with self.opened(tmp_path / "file") as read:
            assert {key: read.metadata[key] for key in checkpoint.metadata} == checkpoint.metadata
        if self.can.metadata:
            texts = {key: value for key, value in checkpoint.metadata.items() if isinstance(value, str)}
            with self.opened_alone(tmp_path / "file") as read:
                assert {key: read.metadata.get(key) for key in texts} == texts

    def test_leaves_are_kept_as_declared(self, tmp_path: Path) -> None:
        self.needs_writing()
        checkpoint = self.rich_checkpoint()
        self.save(checkpoint, tmp_path / "file")
        with self.opened(tmp_path / "file") as read:
            _assert_same_leaves(read, checkpoint)
        if self.can.leaves:
            with self.opened_alone(tmp_path / "file") as read:
                _assert_same_leaves(read, checkpoint)

    def test_aliases_are_kept_as_declared(self, tmp_path: Path) -> None:
        """Without its sidecar a file still has every name, with the right bytes."""
        self.needs_writing()
        checkpoint = self.rich_checkpoint()
        truth = {name: fingerprint(checkpoint.read(name)) for name in checkpoint.names()}
        self.save(checkpoint, tmp_path / "file")
        with self.opened(tmp_path / "file") as read:
            assert read.aliases == checkpoint.aliases
            assert fingerprints(read) == truth
        sidecar_path(tmp_path / "file").unlink(missing_ok=True)
        with self.opened(tmp_path / "file") as read:
            assert read.aliases == (checkpoint.aliases if self.can.aliases else {})
            assert fingerprints(read) == truth

    def _named(self, names: Sequence[str]) -> Checkpoint:
        """Return tensors of different values: a writer that mixes up two of them is caught."""
        everything = [*NAMES["that nest"], *NAMES["that do not nest"]]
        return MemoryCheckpoint({n: bit_patterns(self.dtype, 2, 2 * everything.index(n)) for n in names})


def _assert_same_leaves(read: Checkpoint, wanted: Checkpoint) -> None:
    assert read.leaves.keys() == wanted.leaves.keys()
    for path, leaf in wanted.leaves.items():
        assert same_leaf(read.leaves[path], leaf), path
