"""The file ``<target>.meta.json`` beside a checkpoint: what its format has no room for.

It *records* ties, leaves and metadata, and nothing that a tensor depends on: a tie's tensors are both
stored in full, so deleting the sidecar never makes a tensor wrong. It carries the size of its target
and a digest of what the target's header says; when they do not fit, it is ignored with a warning.
A recorded tie counts only while the two tensors still hold the same bytes, which opening compares to the
last one: a program that trains on in place unties them.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ckptio.adapters import Annotated
from ckptio.checkpoint import Checkpoint
from ckptio.elements import same_bytes
from ckptio.errors import CkptError, OptionError
from ckptio.files import SourceFile
from ckptio.leaves import decode_leaf, encode_leaf, same_leaf
from ckptio.limits import current_limits

__all__ = ["Sidecar", "SidecarWarning", "apply_sidecar", "difference", "is_sidecar", "sidecar_path"]

_KEY = "ckptio_sidecar"
_VERSION = 1


class SidecarWarning(UserWarning):
    """A sidecar, or a part of it, was ignored."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What is recorded beside a target: ties, leaves and metadata."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    leaves: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.aliases or self.leaves or self.metadata)

    def to_json(self, target: Path, written: Checkpoint) -> bytes:
        """Return the sidecar's content for a target that reads as ``written``.

        Raises `OptionError` for metadata that is not JSON.
        """
        try:
            text = json.dumps(
                {
                    _KEY: _VERSION,
                    "target": {"size": _size(target, written), "header": _header_digest(written)},
                    "aliases": dict(self.aliases),
                    "leaves": {path: encode_leaf(leaf) for path, leaf in self.leaves.items()},
                    "metadata": dict(self.metadata),
                },
                indent=1,
                allow_nan=False,
            )
        except (TypeError, ValueError) as error:
            raise OptionError(f"metadata that is not JSON cannot be recorded: {error}") from None
        return text.encode("ascii") + b"\n"


def sidecar_path(target: Path) -> Path:
    """Return where the sidecar of ``target`` is: beside it, a directory too."""
    if target.name in ("", ".."):
        target = Path(os.path.abspath(target))
    return target.parent / f"{target.name}.meta.json"


def difference(wanted: Checkpoint, written: Checkpoint, owns: Callable[[str], bool]) -> Sidecar:
    """Return what ``wanted`` says and the file just ``written`` does not say by itself.

    ``owns`` is `Format.owns` of the written format: metadata that are about a container of its own, which the
    new container replaces.
    """
    return Sidecar(
        {alias: name for alias, name in wanted.aliases.items() if written.aliases.get(alias) != name},
        {
            path: leaf
            for path, leaf in wanted.leaves.items()
            if path not in written.leaves or not same_leaf(leaf, written.leaves[path])
        },
        {
            key: value
            for key, value in wanted.metadata.items()
            if not owns(key) and not _says(written.metadata.get(key, ...), value)
        },
    )


def _says(found: Any, wanted: Any) -> bool:
    """Return whether a value read back says all that was wanted; a map may say more."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return all(key in found and _says(found[key], value) for key, value in wanted.items())
    return type(found) is type(wanted) and bool(found == wanted)


def is_sidecar(path: Path) -> bool:
    """Return whether the file is a sidecar that ckptio wrote (and not one of the user's)."""
    try:
        return _parse(path) is not None
    except ValueError:
        return False


def apply_sidecar(path: Path, checkpoint: Checkpoint) -> Checkpoint:
    """Return ``checkpoint``, read from ``path``, with what its sidecar records; or as it is.

    A sidecar that cannot be read or does not fit is ignored with a `SidecarWarning`.
    """
    side = sidecar_path(path)
    try:
        found = _parse(side)
        if found is None:
            return checkpoint
        content, target = found
        if target != {"size": _size(path, checkpoint), "header": _header_digest(checkpoint)}:
            raise ValueError("it belongs to another version of the file")
    except ValueError as error:
        warnings.warn(f"{side}: ignored: {error}", SidecarWarning, stacklevel=3)
        return checkpoint
    ties = {}
    for alias, name in content.aliases.items():
        if _still_tied(checkpoint, alias, name):
            ties[alias] = name
        else:
            warnings.warn(
                f"{side}: {alias} is no longer tied to {name}: the file has no two equal tensors so named",
                SidecarWarning,
                stacklevel=3,
            )
    return Annotated(
        checkpoint,
        aliases={**checkpoint.aliases, **ties},
        leaves={**checkpoint.leaves, **content.leaves},
        metadata=_merged(checkpoint.metadata, content.metadata),
    )


def _merged(found: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file says with what is recorded; of two maps under one key, the entries of both."""
    merged = {**found, **recorded}
    for key in found.keys() & recorded.keys():
        if isinstance(found[key], Mapping) and isinstance(recorded[key], Mapping):
            merged[key] = {**found[key], **recorded[key]}
    return merged


def _parse(path: Path) -> tuple[Sidecar, Any] | None:
    """Return a sidecar and what it says of its target, None when there is none; ValueError when bad."""
    try:
        data = _content(path)
    except FileNotFoundError:
        return None
    except (OSError, CkptError) as error:
        raise ValueError(f"it cannot be read: {error}") from None
    try:
        document = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    match document:
        case {
            "ckptio_sidecar": 1,
            "target": target,
            "aliases": dict(aliases),
            "leaves": dict(leaves),
            "metadata": dict(metadata),
        } if not any(not isinstance(name, str) or name in aliases for name in aliases.values()):
            decoded = {path: decode_leaf(leaf) for path, leaf in leaves.items()}
            return Sidecar(aliases, decoded, metadata), target
    raise ValueError("it is no sidecar of this version of ckptio")


def _content(path: Path) -> bytes:
    file = SourceFile(path)  # which does not wait for the writer of a pipe
    try:
        if file.size > current_limits().header_bytes:
            raise ValueError("it is larger than any sidecar")
        return file.read_at(0, file.size)
    finally:
        file.close()


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _size(target: Path, checkpoint: Checkpoint) -> int:
    if target.is_dir():
        # What else is in a directory may be the user's, and come and go.
        return sum(spec.nbytes for spec in checkpoint.specs.values())
    return os.stat(target).st_size


def _header_digest(checkpoint: Checkpoint) -> str:
    """Digest what the header says of the tensors: names, dtypes and shapes, in file order."""
    digest = hashlib.sha256()
    for spec in checkpoint.specs.values():
        line = json.dumps([spec.name, spec.dtype.value, spec.shape])
        digest.update(line.encode("ascii") + b"\n")
    return f"sha256:{digest.hexdigest()}"


def _still_tied(checkpoint: Checkpoint, alias: str, name: str) -> bool:
    if checkpoint.aliases.get(alias) == name:
        return True
    if alias in checkpoint.aliases.values():
        return False  # the file's own ties lead to it
    one, other = checkpoint.specs.get(alias), checkpoint.specs.get(name)
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return same_bytes(checkpoint, alias, name)
