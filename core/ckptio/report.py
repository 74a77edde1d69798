"""What became of every tensor, leaf and metadata key of a conversion."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["ConversionReport", "Fate"]

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one thing of the source.

    ``kind`` is ``tensor``, ``leaf`` or ``metadata``. ``actions`` are one or more of ``copied``, ``cast``,
    ``quantised``, ``renamed``, ``transposed``, ``split``, ``joined``, ``reordered``, ``tied``, ``derived``
    and ``dropped`` for a tensor, ``kept``, ``recorded`` (in the sidecar), ``rewritten`` and ``dropped`` for
    the rest. ``target`` is its name in the target, None when it has none.
    """

    kind: str
    name: str
    actions: tuple[str, ...]
    target: str | None
    detail: str = ""

    def __str__(self) -> str:
        what = ", ".join(self.actions)
        to = f" -> {self.target}" if self.target not in (None, self.name) else ""
        return f"{self.name}{to}: {what}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """The account of one conversion; every name of the source stands in ``fates`` exactly once.

    ``added`` has the tensors that only the target has, with the reason. ``losses`` are those that
    were accepted by ``allow``. ``tensor_bytes`` counts the bytes of tensors written, ``seconds`` the
    wall-clock time; ``notes`` say what is left to do by hand.
    """

    source: str
    target: str
    source_format: str
    target_format: str
    fates: tuple[Fate, ...]
    added: dict[str, str]
    losses: tuple[str, ...]
    sidecar: str | None
    tensor_bytes: int
    seconds: float
    notes: tuple[str, ...] = ()

    def count(self, action: str) -> int:
        """Return how many tensors had this action."""
        return sum(fate.kind == "tensor" and action in fate.actions for fate in self.fates)

    def summary(self) -> str:
        """Return the account in a few lines: counts first, then everything that is not a plain copy.

        What became of a tensor of several layers in the same way is one line, ``*`` for the layer's number.
        """
        rate = self.tensor_bytes / self.seconds / 1e6 if self.seconds > 0 else 0.0
        lines = [
            f"{self.source} ({self.source_format}) -> {self.target} ({self.target_format}): "
            f"{_size(self.tensor_bytes)} in {self.seconds:.2f} s ({rate:.0f} MB/s)"
        ]
        for kind in ("tensor", "leaf", "metadata"):
            counts = Counter(action for fate in self.fates if fate.kind == kind for action in fate.actions)
            if counts:
                what = ", ".join(f"{count} {action}" for action, count in counts.items())
                total = sum(fate.kind == kind for fate in self.fates)
                lines.append(f"  {_plural(kind, total)}: {what}")
        lines += _folded(str(fate) for fate in self.fates if set(fate.actions) - {"copied", "kept", "cast"})
        lines += _folded(f"{name}: added ({reason})" for name, reason in self.added.items())
        lines += [f"  accepted loss: {loss}" for loss in self.losses]
        lines += [f"  {note}" for note in self.notes]
        if self.sidecar is not None:
            lines.append(f"  recorded beside it: {self.sidecar}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole account as JSON values."""
        return dataclasses.asdict(self)


def _folded(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines again, one for all those that differ in the numbers of layers alone."""
    alike: dict[str, list[str]] = {}
    for line in lines:
        alike.setdefault(_LAYER.sub("*", line), []).append(line)
    for pattern, group in alike.items():
        yield f"    {group[0]}" if len(group) == 1 else f"    {pattern}; {len(group)} alike"


def _plural(kind: str, count: int) -> str:
    words = {"tensor": "tensors", "leaf": "leaves", "metadata": "metadata keys"}
    one = {"tensor": "tensor", "leaf": "leaf", "metadata": "metadata key"}
    return f"{count} {one[kind] if count == 1 else words[kind]}"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"
