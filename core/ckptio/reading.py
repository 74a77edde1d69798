"""Opening checkpoints: find the format, let its plugin read the header, add what the sidecar records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptio.checkpoint import Checkpoint
from ckptio.detect import Choice, choose_reader, resemblance
from ckptio.errors import CheckpointError, CkptError, UnsupportedError
from ckptio.format import Format, parse_options
from ckptio.registry import Registry, registry
from ckptio.sidecar import apply_sidecar

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["load", "open", "open_as", "plugin_at_work"]


def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    checkpoint_format: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Open a checkpoint; only its header is read.

    ``checkpoint_format`` names the format, else the content decides; ``options`` are the format's
    own. Close the result, or use it as a context manager. Raises FileNotFoundError, `FormatError`
    when no one format fits, and `CheckpointError` when the file is damaged.
    """
    choice = choose_reader(Path(path), checkpoint_format, registry())
    return open_as(choice, Path(path), options)


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint_format: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return all tensors of a checkpoint by name; names that are tied are one array."""
    with open(path, checkpoint_format=checkpoint_format, options=options) as checkpoint:
        arrays = {name: checkpoint.read(name) for name in checkpoint.specs}
        return {name: arrays[checkpoint.canonical(name)] for name in checkpoint.names()}


def open_as(
    choice: Choice,
    path: Path,
    options: Mapping[str, Any] | None = None,
    *,
    found: Registry | None = None,
) -> Checkpoint:
    """Open ``path`` with a chosen format, its sidecar included."""
    chosen = choice.format
    owner = f"the format {chosen.name!r}"
    parsed = parse_options(chosen.read_options, options, owner=owner, flag="-O")
    try:
        with plugin_at_work(chosen, f"reading {path}"):
            checkpoint = chosen.open(path, parsed)
    except (CheckpointError, UnsupportedError) as error:
        note = resemblance(path, chosen, found or registry())
        if note is not None:
            error.add_note(note)
        raise
    try:
        return apply_sidecar(path, checkpoint)
    except BaseException:
        checkpoint.close()
        raise


class plugin_at_work:  # noqa: N801
    """Add to an unexpected exception which plugin was doing what; ours and the system's pass as they are."""

    def __init__(self, chosen: Format, doing: str) -> None:
        self._note = f"the plugin of the format {chosen.name!r} ({type(chosen).__module__}) was {doing}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not isinstance(error, CkptError | OSError | KeyboardInterrupt):
            error.add_note(self._note)
