"""What differs between two checkpoints: names, dtypes, shapes, values, ties, leaves, metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ckptio.checkpoint import Checkpoint, TensorSpec
from ckptio.distance import Distance, Tolerance, measure
from ckptio.errors import OptionError
from ckptio.leaves import encode_leaf
from ckptio.writing import Progress

__all__ = ["Comparison", "TensorDifference", "ValueDifference", "compare"]


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A name that both have, with what differs; ``distance`` is None where the shapes do.

    ``counts`` is false when nothing but the dtype differs and tolerances say that values decide.
    """

    name: str
    one: TensorSpec
    other: TensorSpec
    distance: Distance | None
    counts: bool


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A leaf or metadata key with its JSON text on either side, None where it is absent."""

    key: str
    one: str | None
    other: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences of two checkpoints; ``one`` is the first, ``other`` the second.

    ``same`` counts the names whose tensors are equal, but for dtypes that do not count. A tie is the
    sorted tuple of the names that share storage. ``container`` has the metadata that readers note
    about their own container.
    """

    same: int
    only_one: tuple[TensorSpec, ...]
    only_other: tuple[TensorSpec, ...]
    tensors: tuple[TensorDifference, ...]
    ties_only_one: tuple[tuple[str, ...], ...]
    ties_only_other: tuple[tuple[str, ...], ...]
    leaves: tuple[ValueDifference, ...]
    metadata: tuple[ValueDifference, ...]
    container: tuple[ValueDifference, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing that counts differs: ``container`` never does."""
        parts = (
            self.only_one,
            self.only_other,
            self.ties_only_one,
            self.ties_only_other,
            self.leaves,
            self.metadata,
        )
        return not any(parts) and not any(each.counts for each in self.tensors)


def compare(
    one: Checkpoint,
    other: Checkpoint,
    *,
    atol: float | None = None,
    rtol: float | None = None,
    container_keys: Collection[str] = (),
    progress: Progress | None = None,
) -> Comparison:
    """Compare two checkpoints by their values, in bounded memory.

    Without tolerances, elements of one dtype must have the same bits (a NaN equals a NaN of the same
    bits only), and those of different dtypes the same value. With one, elements are equal within
    ``atol + rtol * max(|a|, |b|)``, NaN equals NaN, and a dtype that differs is told but does not
    count. ``container_keys`` are the metadata keys that concern a container only. ``progress`` is
    called with the bytes of tensors compared, and the bytes that there are. Raises `OptionError` for
    a tolerance that is no number from 0 up, and what reading raises.
    """
    tolerance = _tolerance(atol, rtol)
    common = [name for name in one.names() if name in other]
    found = _tensors(one, other, common, tolerance, progress)
    ties, other_ties = _ties(one), _ties(other)
    metadata, other_metadata = _flat(one.metadata, container_keys), _flat(other.metadata, container_keys)
    return Comparison(
        len(common) - sum(each.counts for each in found),
        tuple(_spec(one, name) for name in one.names() if name not in other),
        tuple(_spec(other, name) for name in other.names() if name not in one),
        found,
        tuple(sorted(ties - other_ties)),
        tuple(sorted(other_ties - ties)),
        _values(_encoded(one.leaves), _encoded(other.leaves)),
        _values(metadata[0], other_metadata[0]),
        _values(metadata[1], other_metadata[1]),
    )


def _tolerance(atol: float | None, rtol: float | None) -> Tolerance | None:
    for flag, value in (("--atol", atol), ("--rtol", rtol)):
        if value is not None and not (value >= 0 and math.isfinite(value)):
            raise OptionError(f"{flag} {value} is no tolerance: a number from 0 up is expected")
    return None if atol is None and rtol is None else Tolerance(atol or 0.0, rtol or 0.0)


def _tensors(
    one: Checkpoint,
    other: Checkpoint,
    names: Collection[str],
    tolerance: Tolerance | None,
    progress: Progress | None,
) -> tuple[TensorDifference, ...]:
    pairs = {name: (_spec(one, name), _spec(other, name)) for name in names}
    # Names that are tied on both sides are one pair of tensors, and are read once.
    stored = {name: (one.canonical(name), other.canonical(name)) for name in names}
    comparable = {stored[name]: pair for name, pair in pairs.items() if pair[0].shape == pair[1].shape}
    total = sum(spec.nbytes for spec, _ in comparable.values())
    distances: dict[tuple[str, str], Distance] = {}
    done = 0
    for key, (spec, _) in comparable.items():
        distances[key] = measure(one, key[0], other, key[1], tolerance)
        done += spec.nbytes
        if progress is not None:
            progress(done, total)
    found = []
    for name, (spec, its) in pairs.items():
        distance = distances.get(stored[name])
        changed = distance is None or distance.differing > 0
        if changed or spec.dtype is not its.dtype:
            found.append(TensorDifference(name, spec, its, distance, changed or tolerance is None))
    return tuple(found)


def _spec(checkpoint: Checkpoint, name: str) -> TensorSpec:
    stored = checkpoint.specs[checkpoint.canonical(name)]
    return TensorSpec(name, stored.dtype, stored.shape)


def _ties(checkpoint: Checkpoint) -> set[tuple[str, ...]]:
    groups: dict[str, set[str]] = {}
    for alias, name in checkpoint.aliases.items():
        groups.setdefault(name, {name}).add(alias)
    return {tuple(sorted(group)) for group in groups.values()}


def _encoded(leaves: Mapping[str, Any]) -> dict[str, str]:
    return {path: json.dumps(encode_leaf(leaf)) for path, leaf in leaves.items()}


def _flat(metadata: Mapping[str, Any], container: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the JSON texts of metadata, a map in it entry by entry: what counts, and the containers'."""
    counting: dict[str, str] = {}
    containers: dict[str, str] = {}
    for key, value in metadata.items():
        into = containers if key in container else counting
        if isinstance(value, Mapping) and value:
            into |= {f"{key}.{inner}": json.dumps(each, sort_keys=True) for inner, each in value.items()}
        else:
            into[key] = json.dumps(value, sort_keys=True)
    return counting, containers


def _values(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[ValueDifference, ...]:
    keys = [*one, *(key for key in other if key not in one)]
    differences = (ValueDifference(key, one.get(key), other.get(key)) for key in keys)
    return tuple(each for each in differences if each.one != each.other)
