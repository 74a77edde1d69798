"""Writing one step directory: aside, whole, checked, then published by one rename."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptio.checkpoint import Checkpoint
from ckptio.conversion import save_checkpoint
from ckptio.errors import OptionError, PluginError
from ckptio.format import Format
from ckptio.output import check_target, write_file
from ckptio.publishing import exchange, fsync_directory, publish_new
from ckptio.trainer_file import STATE_FILE
from ckptio.training.checksums import ChecksummedOutput, file_crc32
from ckptio.training.leftovers import hidden_name, locked_directory
from ckptio.training.manifest import MANIFEST, Manifest

__all__ = ["Part", "all_files", "check_directory", "part_path", "write_step"]

Files = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a step: what it is called (``model``), what is in it, and in which format."""

    name: str
    checkpoint: Checkpoint
    format: Format
    options: Mapping[str, Any] = field(default_factory=dict)


def part_path(name: str, chosen: Format, options: Mapping[str, Any]) -> str:
    """Return the name that a part has in its step directory: ``model.ckpt``; shards make a directory."""
    if chosen.capabilities.shards and options.get("max_shard_size"):
        return name
    suffix = chosen.suffixes[0] if chosen.suffixes else f".{chosen.name}"
    return f"{name}{suffix}"


def check_directory(directory: Path) -> None:
    """Make the directory of a run, or refuse a place where that cannot be, before any work: OSError."""
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(20, "The checkpoint directory is a file", str(directory))
    if not directory.exists():
        check_target(directory, overwrite=False)
        directory.mkdir(exist_ok=True)
        fsync_directory(directory.parent)
    check_target(directory / MANIFEST, overwrite=True)


def write_step(target: Path, step: int, parts: Sequence[Part], document: Mapping[str, Any]) -> Path:
    """Write a step directory with a file per part, ``document`` as its trainer state, and a manifest.

    It appears by one rename with everything in it, on the disk, or not at all. A step of this name that
    is there already is replaced; one that another process publishes meanwhile is not (FileExistsError).
    Raises OSError, and `UnsupportedError` for a part that its format cannot hold.
    """
    before = _identity(target)
    text = json.dumps(document, indent=2, allow_nan=False).encode("ascii") + b"\n"
    staging = hidden_name(target)
    with locked_directory(staging):
        files: Files = {}
        paths = {part.name: part_path(part.name, part.format, part.options) for part in parts}
        for part in parts:
            make_output = functools.partial(ChecksummedOutput, found=functools.partial(_note, files, staging))
            save_checkpoint(
                part.checkpoint,
                staging / paths[part.name],
                checkpoint_format=part.format.name,
                options=part.options,
                make_output=make_output,
            )
        write_file(staging / STATE_FILE, text, overwrite=False)
        manifest = Manifest(
            step,
            {part.name: (paths[part.name], part.format.name) for part in parts},
            all_files(staging, files),
        )
        write_file(staging / MANIFEST, manifest.to_json(), overwrite=False)
        _publish(staging, target, before)
    return target


def _note(files: Files, staging: Path, path: Path, size: int, crc: int) -> None:
    files[path.relative_to(staging).as_posix()] = size, crc


def all_files(staging: Path, known: Files) -> Files:
    """Return every file with size and checksum; those that were watched must have the size they should."""
    found: Files = {}
    for path in sorted(each for each in staging.rglob("*") if each.is_file()):
        name, size = path.relative_to(staging).as_posix(), path.stat().st_size
        wanted, crc = known[name] if name in known else (size, file_crc32(path))
        if wanted != size:
            raise PluginError(f"{name} has {size} bytes, but {wanted} were written; nothing was published")
        found[name] = size, crc
    return found


def _identity(target: Path) -> tuple[int, int] | None:
    """Return which directory has the name ``target``, None when it is free."""
    if not os.path.lexists(target):
        return None
    if target.is_symlink() or not target.is_dir():
        raise OptionError(f"{target}: is in the way and no step directory; move it")
    info = target.stat()
    return info.st_dev, info.st_ino


def _publish(staging: Path, target: Path, before: tuple[int, int] | None) -> None:
    """Give the finished directory its name; the one ``before`` steps aside for it, and no other does.

    They change places in one step where the system can, so that a crash leaves one of the two under the name.
    """
    aside = hidden_name(target)
    try:
        if before is not None and exchange(staging, target):
            if _identity(staging) != before:
                exchange(staging, target)
                raise FileExistsError
            fsync_directory(target.parent)
            return
        if before is not None:
            os.rename(target, aside)
        if before is not None and _identity(aside) != before:
            os.rename(aside, target)
            raise FileExistsError
        try:
            publish_new(staging, target, overwrite=False)
        except BaseException:
            if before is not None and not os.path.lexists(target):
                os.rename(aside, target)
            raise
    except OSError as error:
        if error.errno not in (None, errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
            raise
        what = "Another process has saved this step meanwhile; one run per directory, or another directory"
        raise FileExistsError(errno.EEXIST, what, str(target)) from None
    fsync_directory(target.parent)
    if before is not None:
        shutil.rmtree(aside, ignore_errors=True)
