"""Writing sharded checkpoints in the Hugging Face convention; ``ckptio.shards`` reads them.

The plan, the names and the index are those of ``huggingface_hub.split_state_dict_into_shards_factory``
and of transformers' ``save_pretrained``, so that their loaders find what is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ckptio.adapters import select
from ckptio.checkpoint import Checkpoint, TensorSpec
from ckptio.errors import CkptError, OptionError
from ckptio.output import Output, OutputFile
from ckptio.shards import read_index
from ckptio.weights import INDEX_SUFFIX, WEIGHTS, locate

__all__ = ["parse_size", "plan_shards", "write_shards"]

_UNITS: dict[str, int] = {"": 1, "B": 1} | {
    f"{letter}{kind}": base**power
    for power, letter in enumerate("KMGT", 1)
    for kind, base in (("B", 1000), ("IB", 1024))
}

WriteShard = Callable[[Checkpoint, OutputFile, Mapping[str, str]], None]
"""Writes one file of the given tensors, and of the notes (text by key) that are to stand in it."""


def parse_size(text: str) -> int:
    """Return the bytes of ``5GB``, ``500MB`` (powers of 1000), ``1GiB`` (of 1024) or a plain number.

    Raises ValueError for what is no size.
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError("not a size like 5GB, 500MB, 1GiB or 1000000")
    # Through an integer of billionths: a float would lose bytes.
    whole, _, fraction = match[1].partition(".")
    size = int(whole + fraction.ljust(9, "0")) * _UNITS[match[2].upper()] // 10**9
    if size < 1:
        raise ValueError("a shard has at least one byte")
    return size


def plan_shards(specs: Iterable[TensorSpec], max_bytes: int) -> list[list[str]]:
    """Return the names of each shard: greedy in order, no more than ``max_bytes`` of tensors in one.

    A tensor larger than that has a shard of its own, which comes before the one being filled.
    """
    plan: list[list[str]] = []
    current: list[str] = []
    size = 0
    for spec in specs:
        if spec.nbytes > max_bytes:
            plan.append([spec.name])
            continue
        if size + spec.nbytes > max_bytes:
            plan.append(current)
            current, size = [], 0
        current.append(spec.name)
        size += spec.nbytes
    return [*plan, current] if current else plan


def write_shards(
    checkpoint: Checkpoint,
    out: Output,
    max_bytes: int,
    notes: Mapping[str, str],
    *,
    suffix: str,
    write_shard: WriteShard,
    stem: str | None = None,
) -> None:
    """Write a directory: shards and, last, their index; or one file, when all fits into one.

    ``notes`` go into the index, or into the one file. In a directory that exists, the new set takes
    the place of the one that a reader finds there, and its name, unless a ``stem`` is given. Raises
    `OptionError` for a target that has the name of a file.
    """
    if out.final_name.endswith(suffix):
        raise OptionError(f"{out.target}: shards make a directory; name one, without {suffix}")
    plan = plan_shards(checkpoint.specs.values(), max_bytes)
    old_stem = _replace_old_set(out, suffix)
    stem = stem or old_stem
    if len(plan) < 2:
        write_shard(checkpoint, out.create(f"{stem}{suffix}"), notes)
        return
    weight_map: dict[str, str] = {}
    for names, file in zip(plan, _free_names(stem, suffix, len(plan), out.existing), strict=True):
        shard = out.create(file)
        write_shard(select(checkpoint, names), shard, {})
        # A set may have more shards than a process may have open files.
        shard.finish()
        weight_map |= dict.fromkeys(names, file)
    total = sum(spec.nbytes for spec in checkpoint.specs.values())
    content = {"metadata": {"total_size": total, **notes}, "weight_map": weight_map}
    text = json.dumps(content, indent=2) + "\n"
    out.create(f"{stem}{suffix}{INDEX_SUFFIX}").write(text.encode())


def _replace_old_set(out: Output, suffix: str) -> str:
    """Tell ``out`` which files of an existing directory go; return the stem of the names of the old ones."""
    old = locate(out.target, suffix) if out.existing else None
    if old is None:
        return "model"
    # Of a file and an index under the names of transformers, the other would count once the one is gone.
    usual = [
        name for name in WEIGHTS if name in out.existing and name.removesuffix(INDEX_SUFFIX).endswith(suffix)
    ]
    for name in dict.fromkeys([old.name, *(usual if old.name in usual else ())]):
        out.replace([name, *(_old_shards(out.target / name, suffix) if name.endswith(INDEX_SUFFIX) else ())])
    return old.name.removesuffix(INDEX_SUFFIX).removesuffix(suffix)


def _old_shards(index: Path, suffix: str) -> list[str]:
    """Return the shards that an old index names; a damaged one names none, and they are left alone."""
    try:
        return [name for name in read_index(index).files if name.endswith(suffix)]
    except CkptError:
        return []


def _free_names(stem: str, suffix: str, count: int, taken: frozenset[str]) -> list[str]:
    """Return names for ``count`` shards, none of them taken: a crash must never mix old and new ones."""
    attempt, version = stem, 1
    while True:
        names = [f"{attempt}-{number:05d}-of-{count:05d}{suffix}" for number in range(1, count + 1)]
        if not taken.intersection(names):
            return names
        version += 1
        attempt = f"{stem}-v{version}"
