"""``ckpt verify``: whether a checkpoint is whole, to its last byte."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptio.cli.options import CheckpointFormat, CheckpointPath, Json, SourceOptions, parse_pairs
from ckptio.cli.progress import ProgressBar
from ckptio.cli.text import byte_count, escape, print_json

if TYPE_CHECKING:
    from ckptio.checkpoint import Checkpoint

__all__ = ["check", "print_check", "verify"]


def verify(
    checkpoint_path: CheckpointPath,
    checkpoint_format: CheckpointFormat = None,
    source_options: SourceOptions = None,
    as_json: Json = False,
) -> int:
    """Check that a checkpoint is whole.

    Its structure, every tensor to its last byte, its checksums where the format has them, its ties and
    its sidecar; the exit status is 1 when something is wrong. PATH may be a step directory of a training
    run: then the sizes and checksums of its manifest, and all of that for each of its files.
    """
    path = Path(checkpoint_path)
    options = parse_pairs(source_options, "-O")
    if checkpoint_format is None and path.is_dir():
        from ckptio.cli.step_directory import is_step, verify_step

        if is_step(path):
            return verify_step(path, options, as_json=as_json)
    about = check(path, checkpoint_format, options)
    if as_json:
        print_json(about)
    else:
        print_check(about)
    return int(not about["ok"])


def check(path: Path, checkpoint_format: str | None, options: Mapping[str, str]) -> dict[str, Any]:
    """Read a checkpoint file to its last byte; return what was found, as JSON values."""
    from ckptio.detect import choose_reader
    from ckptio.reading import open_as
    from ckptio.registry import registry
    from ckptio.sidecar import SidecarWarning, sidecar_path

    choice = choose_reader(path, checkpoint_format, registry())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SidecarWarning)
        checkpoint = open_as(choice, path, options)
    with checkpoint:
        problems = [str(each.message) for each in caught] + _read_all(checkpoint)
        omissions = [str(problem) for problem in checkpoint.omissions()]
        checkpoint.check_unchanged()
    sidecar = sidecar_path(path)
    return {
        "path": str(path),
        "format": choice.format.name,
        "reason": choice.reason,
        "ok": not problems,
        "checksums": choice.format.capabilities.checksum,
        "problems": problems,
        "tensors": len(checkpoint.specs),
        "tensor_bytes": sum(spec.nbytes for spec in checkpoint.specs.values()),
        "ties": len(checkpoint.aliases),
        "leaves": len(checkpoint.leaves),
        "sidecar": str(sidecar) if sidecar.exists() else None,
        "omissions": omissions,
    }


def _read_all(checkpoint: Checkpoint) -> list[str]:
    """Read every tensor and follow every tie; return what is wrong, one line per tensor."""
    from ckptio.errors import CheckpointError
    from ckptio.leaves import leaf_problem

    problems = []
    total = sum(spec.nbytes for spec in checkpoint.specs.values())
    done = 0
    with ProgressBar() as progress:
        for name, spec in checkpoint.specs.items():
            size, crc = 0, 0
            stated = checkpoint.crc32(name)
            try:
                for chunk in checkpoint.chunks(name):
                    size += len(chunk)
                    crc = zlib.crc32(chunk, crc) if stated is not None else 0
                    progress(done + size, total)
            except CheckpointError as error:
                problems.append(f"{name}: {error}")
            else:
                if size != spec.nbytes:
                    problems.append(f"{name}: {size} bytes were read of {spec.nbytes}")
                elif stated is not None and crc != stated:
                    problems.append(f"{name}: its checksum is {crc:08x}, the file states {stated:08x}")
            done += spec.nbytes
    for alias, name in checkpoint.aliases.items():
        if name not in checkpoint.specs or alias in checkpoint.specs:
            problems.append(f"{alias}: a tie with {name!r}, which leads to no tensor of its own")
    for where, leaf in checkpoint.leaves.items():
        problem = leaf_problem(leaf)
        if problem is not None:
            problems.append(f"{where}: {problem}")
    return problems


def print_check(about: dict[str, Any], *, checksummed: bool = False) -> None:
    """Print what `check` returned; ``checksummed`` says that a manifest's checksum fits the file."""
    print(f"{escape(about['path'])}: {'whole' if about['ok'] else 'NOT whole'}")
    lines = [
        f"format: {about['format']} ({about['reason']})",
        f"tensors read to the last byte: {about['tensors']}, {byte_count(about['tensor_bytes'])}",
        f"ties that lead to a tensor: {about['ties']}; leaves: {about['leaves']}",
    ]
    if about["sidecar"] is not None and about["ok"]:
        lines.append(f"the sidecar fits: {about['sidecar']}")
    if about["checksums"]:
        lines.append("checksums: they fit" if about["ok"] else "checksums: the format carries them")
    elif checksummed:
        lines.append("checksums: that of the manifest fits")
    else:
        lines.append("checksums: the format has none, so a value that was changed in place is not noticed")
    lines += [f"left out by the reader: {omission}" for omission in about["omissions"]]
    lines += [f"problem: {problem}" for problem in about["problems"]]
    for line in lines:
        print(f"  {escape(line)}")
