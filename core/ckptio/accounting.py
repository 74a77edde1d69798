"""The account of one conversion: what became of every tensor, leaf and metadata key of the source."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ckptio.report import ConversionReport, Fate

if TYPE_CHECKING:
    from ckptio.job import Job
    from ckptio.models.moves import Moved
    from ckptio.writing import Written

__all__ = ["account"]


def account(
    job: Job, source: str, target: str, source_format: str, written: Written, seconds: float
) -> ConversionReport:
    """Account for everything that the source of a job had, once it is written."""
    fates = [_tensor(job, name, written) for name in job.source.names()]
    kept = job.current.leaves
    for path in job.source.leaves:
        action = "recorded" if path in written.recorded_leaves else "kept" if path in kept else "dropped"
        fates.append(Fate("leaf", path, (action,), path if path in kept else None))
    for key in {**job.source.metadata, **job.current.metadata}:
        if key in written.recorded_metadata:
            action = "recorded"
        elif key == job.format.name:
            action = "rewritten"
        else:
            action = "kept"
        detail = ", ".join(f"{k}={v}" for k, v in job.configured.items()) if key == "config" else ""
        fates.append(Fate("metadata", key, (action,), key, detail))
    return ConversionReport(
        source,
        target,
        source_format,
        job.format.name,
        tuple(fates),
        dict(job.layout.added) if job.layout is not None else {},
        tuple(str(dataclasses.replace(problem, allow=None)) for problem in job.accepted),
        str(written.sidecar) if written.sidecar is not None else None,
        written.tensor_bytes,
        seconds,
        job.notes,
    )


def _tensor(job: Job, name: str, written: Written) -> Fate:
    layout = job.layout
    moved = job.moved.get(name)
    if layout is not None:
        for target in (name, *(moved.targets if moved is not None else ())):
            if target in layout.derived:
                return Fate("tensor", name, ("derived",), None, layout.derived[target])
            if target in layout.implied:
                stored = layout.implied[target]
                return Fate(
                    "tensor", name, ("tied",), stored, f"not stored: the layout takes it to be {stored}"
                )
    if moved is not None:
        return _moved(job, name, moved, written)
    if name not in job.current:
        return Fate("tensor", name, ("dropped",), None, "on request")
    canonical = job.current.canonical(name)
    how, detail = _how(job, canonical)
    actions = [how]
    if name != canonical:
        in_full = name in written.names
        actions = [how, "tied"] if in_full else ["tied"]
        detail = f"{'stored in full; tied' if in_full else 'shares storage'} with {canonical}"
        if canonical not in job.source:
            # The tensor has come to be stored under another name, and its own is now an alias.
            return Fate("tensor", name, (how, "renamed", "tied"), canonical, detail)
    return Fate("tensor", name, tuple(actions), name, detail)


def _moved(job: Job, name: str, moved: Moved, written: Written) -> Fate:
    targets = [target for target in moved.targets if target in job.current]
    if not targets:
        return Fate("tensor", name, ("dropped",), None, "on request")
    stored = job.current.canonical(targets[0])
    how, detail = _how(job, stored)
    actions = (how, *(each for each in moved.actions if targets != [name] or each != "renamed"))
    if stored == targets[0]:
        return Fate("tensor", name, actions, ", ".join(targets), detail)
    in_full = targets[0] in written.names
    detail = f"{'stored in full; tied' if in_full else 'shares storage'} with {stored}"
    return Fate("tensor", name, (*actions, "tied"), targets[0], detail)


def _how(job: Job, stored: str) -> tuple[str, str]:
    """Return what became of the values of a stored tensor, and into what where the writer changed them."""
    if stored in job.altered:
        return "quantised", job.altered[stored]
    return "cast" if stored in job.cast_names else "copied", ""
