"""One flag chooses the format; where it is not given, the content of the file does, then its name."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ckptio.errors import (
    AmbiguousFormatError,
    CkptError,
    UndetectedFormatError,
    UnsupportedError,
)
from ckptio.format import Confidence, Format, Match, Probe
from ckptio.registry import Registry
from ckptio.signatures import looks_like

__all__ = ["Choice", "choose_reader", "choose_writer", "match_format", "resemblance"]

_FLAG = "pass --checkpoint_format NAME (checkpoint_format=)"


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen format, and why it was chosen."""

    format: Format
    reason: str


def choose_reader(path: Path, name: str | None, registry: Registry) -> Choice:
    """Return the format that reads ``path``: the named one, or the one that recognises the content.

    Raises FileNotFoundError first when there is no such path, `UndetectedFormatError` with each
    format's reason when none recognises it, and `AmbiguousFormatError` when several do.
    """
    os.stat(path)
    if name is not None:
        return Choice(registry.require(name), "it was asked for")
    probe = Probe(path)
    try:
        found, reasons = _matches(probe, registry)
        best = max((match.confidence for _, match in found), default=Confidence.NO)
        if best is Confidence.NO:
            raise _undetected(path, probe, reasons)
        winners = [(each, match) for each, match in found if match.confidence is best]
        if len(winners) > 1:
            names = "\n".join(f"  {each.name}: {match.reason}" for each, match in winners)
            raise AmbiguousFormatError(f"{path}: several formats recognise this file; {_FLAG}\n{names}")
        winner, match = winners[0]
        return Choice(registry.require(winner.name), match.reason)
    finally:
        probe.close()


def choose_writer(path: Path, name: str | None, registry: Registry, *, directory: bool = False) -> Choice:
    """Return the format that writes ``path``: the named one, or the only one with its suffix.

    A ``directory`` of no such suffix is written by the only format that makes one of shards.
    """
    if name is not None:
        choice = Choice(registry.require(name), "it was asked for")
    else:
        suffix = path.suffix
        formats = _loadable(registry)[0]
        owners = [each for each in formats if suffix and suffix in each.suffixes]
        makers = [each for each in formats if directory and each.makes_shards]
        if not owners and len(makers) == 1:
            return Choice(registry.require(makers[0].name), "it alone makes a directory of shards")
        if len(owners) != 1:
            found = ", ".join(each.name for each in owners)
            message = f"{path}: the suffix {suffix!r} is that of {found or 'no installed format'}; {_FLAG}"
            if owners:
                raise AmbiguousFormatError(message)
            raise UndetectedFormatError(f"{message}; installed: {', '.join(registry.names())}")
        choice = Choice(registry.require(owners[0].name), f"the suffix is {suffix}")
    if not choice.format.capabilities.writes:
        raise UnsupportedError(f"the format {choice.format.name!r} can be read but not written")
    return choice


def match_format(candidate: Format, probe: Probe) -> Match:
    """Ask one format about a probed path: its declared magic first, then its own `match`, then the suffix."""
    for magic in candidate.magic:
        if probe.head.startswith(magic):
            return Match(Confidence.SURE, f"it starts with the magic of {candidate.name}")
    match = candidate.match(probe)
    if match.confidence is Confidence.NO and probe.listing is None:
        suffix = next((each for each in candidate.suffixes if probe.name.endswith(each)), None)
        if suffix is not None:
            return Match(Confidence.NAME, f"its name ends in {suffix} ({match.reason})")
    return match


def resemblance(path: Path, chosen: Format, registry: Registry) -> str | None:
    """Return a note on what ``path`` looks like, when that is not the format ``chosen``."""
    probe = Probe(path)
    try:
        for other, match in _matches(probe, registry)[0]:
            if other is not chosen and match.confidence is Confidence.SURE:
                return f"{path} looks like {other.name}: {match.reason}; try --checkpoint_format {other.name}"
        if match_format(chosen, probe).confidence is Confidence.SURE:
            return None
        what = looks_like(probe)
        return f"{path} looks like {what}" if what else None
    finally:
        probe.close()


def _loadable(registry: Registry) -> tuple[list[Format], list[str]]:
    """Load every usable plugin; one that fails leaves a line and harms no other."""
    found, failures = [], []
    for name in registry.names():
        try:
            found.append(registry.load(name))
        except CkptError as error:
            failures.append(f"{name}: {error}")
    return found, failures


def _matches(probe: Probe, registry: Registry) -> tuple[list[tuple[Format, Match]], list[str]]:
    formats, reasons = _loadable(registry)
    found = []
    for each in formats:
        try:
            # As with imports: what a plugin prints must not mix with the output of `--json`.
            with contextlib.redirect_stdout(sys.stderr):
                match = match_format(each, probe)
        except Exception as error:
            # A fault in one plugin's sniffing must not hide what another knows.
            reasons.append(f"{each.name}: its match() failed: {type(error).__name__}: {error}")
            continue
        found.append((each, match))
        reasons.append(f"{each.name}: {match.reason}")
    return found, reasons


def _undetected(path: Path, probe: Probe, reasons: list[str]) -> UndetectedFormatError:
    lines = "\n".join(f"  {reason}" for reason in sorted(reasons))
    if probe.listing is not None:
        some = ", ".join(probe.listing[:8]) + (", …" if len(probe.listing) > 8 else "")
        return UndetectedFormatError(
            f"{path}: no installed format recognises this directory; name a file in it ({some or 'empty'})"
        )
    what = looks_like(probe)
    looks = f"; it looks like {what}" if what else ""
    return UndetectedFormatError(f"{path}: no installed format recognises this file{looks}; {_FLAG}\n{lines}")
