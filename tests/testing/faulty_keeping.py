"""Formats that each break one promise about names, order, ties, leaves, metadata and detection."""

from __future__ import annotations

from typing import Any

from ckptio import Checkpoint, Confidence, Match, Output, Probe
from ckptio.adapters import View, expand_aliases, rename
from testing.faults import breaks
from testing.sound_formats import Sound


@breaks("names_are_kept")
class CollapsesSlashes(Sound):
    def write(self, checkpoint: Checkpoint, out: Output, options: Any) -> None:
        names = {name: name.replace("//", "/") for name in checkpoint.names()}
        super().write(rename(checkpoint, names), out, options)


@breaks("names_are_kept")
class MixesTwoNamesUp(Sound):
    """The tensors of names that differ by no more than a tilde are exchanged."""

    def write(self, checkpoint: Checkpoint, out: Output, options: Any) -> None:
        pair = {"~": "..", "..": "~"} if "~" in checkpoint and ".." in checkpoint else {}
        super().write(rename(checkpoint, pair), out, options)


@breaks("the_order_of_names_is_kept_or_always_the_same")
class RotatesTheOrder(Sound):
    def write(self, checkpoint: Checkpoint, out: Output, options: Any) -> None:
        names = list(checkpoint.specs)
        order = {name: name for name in [*names[1:], *names[:1]]}
        super().write(View(checkpoint, order, checkpoint.aliases), out, options)


@breaks("metadata_is_kept_as_declared")
class ForgetsMetadata(Sound):
    def header(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return {**super().header(checkpoint), "metadata": {}}


@breaks("leaves_are_kept_as_declared")
class ForgetsLeaves(Sound):
    def header(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return {**super().header(checkpoint), "leaves": {}}


@breaks("leaves_are_kept_as_declared")
class TurnsListsIntoText(Sound):
    def header(self, checkpoint: Checkpoint) -> dict[str, Any]:
        header = super().header(checkpoint)
        texts = {
            path: str(leaf) if isinstance(leaf, list) else leaf for path, leaf in header["leaves"].items()
        }
        return {**header, "leaves": texts}


@breaks("aliases_are_kept_as_declared")
class StoresTiesInFull(Sound):
    def write(self, checkpoint: Checkpoint, out: Output, options: Any) -> None:
        super().write(expand_aliases(checkpoint), out, options)


@breaks("its_own_files_are_recognised_by_content")
class KnowsNothing(Sound):
    def match(self, probe: Probe) -> Match:
        return Match(Confidence.NO, "no idea")


@breaks("its_own_files_are_recognised_by_content")
class GoesByTheName(Sound):
    def match(self, probe: Probe) -> Match:
        return Match(Confidence.NAME, "it may well be")


@breaks("files_of_other_shipped_formats_are_not_claimed")
class ClaimsStatedict(Sound):
    magic = (b"CKPT",)


@breaks("files_that_are_no_checkpoint_are_not_claimed")
class ClaimsZipsWithText(Sound):
    def match(self, probe: Probe) -> Match:
        if b"readme" in probe.head[:100]:
            return Match(Confidence.SURE, "a zip archive")
        return super().match(probe)
