"""Folders of models as transformers has them: ``config.json`` and what lies beside the weights.

A format that reads and writes directories keeps ``metadata["config"]`` in ``config.json`` when it is in
transformers' spelling, which has a ``model_type``. The other files of a folder are not the format's:
`FolderOutput` copies them.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ckptio.adapters import Annotated
from ckptio.checkpoint import Checkpoint
from ckptio.errors import CorruptCheckpointError
from ckptio.files import SourceFile
from ckptio.jsontext import nesting_problem, parse_object
from ckptio.output import Output
from ckptio.weights import WEIGHTS

__all__ = [
    "CONFIG",
    "GENERATION",
    "NAMED_WEIGHTS",
    "FolderOutput",
    "folder_config",
    "generation_files",
    "model_folder",
    "with_config",
    "write_config",
]

CONFIG = "config.json"
GENERATION = "generation_config.json"
NAMED_WEIGHTS = "transformers_weights"
"""The key by which a config names a file of weights that is not one of `WEIGHTS`."""
_MODEL_TYPE = "model_type"
_LARGEST_CONFIG = 16 << 20
_PIECE = 1 << 20


def with_config(checkpoint: Checkpoint, path: Path, weights: Path) -> Checkpoint:
    """Add ``config.json`` to a checkpoint that was opened at ``path``: a directory, or a file in one.

    ``weights`` is the file that was opened; a config that names another is given, with a warning.

    To a file, it is added when the file is one of `WEIGHTS` without a config of its own, and the config has
    a ``model_type``. One that is no JSON object says nothing of the tensors: it is left out, with a warning.
    """
    in_folder = path.is_dir()
    if not in_folder and (path.name not in WEIGHTS or "config" in checkpoint.metadata):
        return checkpoint
    try:
        config = _read_config(path if in_folder else path.parent)
    except CorruptCheckpointError as error:
        warnings.warn(f"ignored: {error}", stacklevel=2)
        return checkpoint
    if config is None or not (in_folder or _MODEL_TYPE in config):
        return checkpoint
    named = config.get(NAMED_WEIGHTS)
    if named not in (None, weights.name):
        what = (
            f"{named!r} has the weights by {CONFIG}, but {weights.name} is read; name the file that is meant"
        )
        warnings.warn(f"{weights.parent}: {what}", stacklevel=2)
    return Annotated(checkpoint, metadata={**checkpoint.metadata, "config": config})


def folder_config(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """Return the config of a checkpoint when it is one for ``config.json``."""
    config = checkpoint.metadata.get("config")
    return config if isinstance(config, Mapping) and _MODEL_TYPE in config else None


def write_config(checkpoint: Checkpoint, out: Output) -> Checkpoint:
    """Write ``config.json`` where the checkpoint has one, and return the checkpoint without it."""
    config = folder_config(checkpoint)
    if config is None:
        return checkpoint
    out.replace([CONFIG])
    out.create(CONFIG).write(json.dumps(config, indent=2, allow_nan=False).encode() + b"\n")
    return Annotated(
        checkpoint, metadata={key: value for key, value in checkpoint.metadata.items() if key != "config"}
    )


def model_folder(source: Path) -> Path | None:
    """Return the model's folder that a source is or, as one of `WEIGHTS` beside a config, is in."""
    if source.is_dir():
        return source
    if source.name not in WEIGHTS:
        return None
    try:
        config = _read_config(source.parent)
    except CorruptCheckpointError:
        return None
    return source.parent if config is not None and _MODEL_TYPE in config else None


def generation_files(folder: Path) -> list[Path]:
    """Return the ``generation_config.json`` of a model's folder, where it has one."""
    path = folder / GENERATION
    return [path] if path.is_file() else []


class FolderOutput(Output):
    """A directory with further files in it: copies of ``companions``, and ``made`` ones by name.

    They are there before those of the format, whose last file makes the set count. Files of these names
    that are there already go, and so do those of ``replaced``.
    """

    def __init__(
        self,
        target: Path,
        *,
        companions: Sequence[Path],
        made: Mapping[str, bytes],
        replaced: Collection[str] = (),
        overwrite: bool = False,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(target, overwrite=overwrite, on_bytes=on_bytes)
        self._companions = {path.name: path for path in companions}
        self._made = made
        self.replace({**self._companions, **made, **dict.fromkeys(replaced)})

    def __enter__(self) -> Self:
        try:
            for name, path in self._companions.items():
                file = self.create(name)
                for piece in _pieces(path):
                    file.write(piece)
            for name, content in self._made.items():
                self.create(name).write(content)
        except BaseException:
            self.discard()
            raise
        return super().__enter__()


def _pieces(path: Path) -> Iterator[bytes]:
    with contextlib.closing(SourceFile(path)) as file:
        for offset in range(0, file.size, _PIECE):
            yield file.read_at(offset, min(_PIECE, file.size - offset))


def _read_config(folder: Path) -> dict[str, Any] | None:
    """Return what ``config.json`` of a folder says, None where there is none."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    with contextlib.closing(SourceFile(path)) as file:
        if file.size > _LARGEST_CONFIG:
            raise CorruptCheckpointError(f"larger than {_LARGEST_CONFIG} bytes, no config", path=path)
        content = parse_object(file.read_at(0, file.size), "the config", path=path)
    problem = nesting_problem(content)
    if problem:
        raise CorruptCheckpointError(f"the config is {problem}", path=path)
    return content
