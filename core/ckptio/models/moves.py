"""What becomes of each tensor on the way from one layout to another: its new names, what is done to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ckptio.models.tables import Architecture

__all__ = ["Moved", "chain", "moves"]


@dataclass(frozen=True, slots=True)
class Moved:
    """What a tensor has become: the names of the target that it is in, and what was done to it."""

    targets: tuple[str, ...]
    actions: tuple[str, ...]


def chain(first: Mapping[str, Moved], then: Mapping[str, Moved]) -> dict[str, Moved]:
    """Return what has become of tensors that were moved twice."""
    moved = dict(then)
    for name, one in first.items():
        steps = [moved.pop(target, Moved((target,), ())) for target in one.targets]
        targets = tuple(dict.fromkeys(target for step in steps for target in step.targets))
        actions = tuple(dict.fromkeys((*one.actions, *(action for step in steps for action in step.actions))))
        moved[name] = Moved(targets, actions)
    return moved


def moves(
    table: Architecture, source: str | None, target: str | None, n_layer: int, names: Collection[str]
) -> dict[str, Moved]:
    """Return what becomes of those of ``names`` that are otherwise in ``target``; None: the canonical table.

    Layouts that store as many parts of a tensor store the same ones.
    """
    moved: dict[str, Moved] = {}
    for row in table.rows:
        old, new = row.parts(source or ""), row.parts(target or "")
        turned = row.column(source or "").transposed != row.column(target or "").transposed
        for index, each in enumerate(old):
            parts = new[index : index + 1] if len(old) == len(new) else new
            done = {
                "split": len(new) > len(old),
                "joined": len(new) < len(old),
                "renamed": len(new) == len(old) and each.name != parts[0].name,
                "transposed": turned,
                "reordered": any(part.rotary != each.rotary for part in parts),
            }
            actions = tuple(action for action, applies in done.items() if applies)
            for layer in range(row.count(n_layer)) if actions else ():
                name, *targets = (part.name.replace("{l}", str(layer)) for part in (each, *parts))
                if name in names:
                    moved[name] = Moved(tuple(targets), actions)
    return moved
