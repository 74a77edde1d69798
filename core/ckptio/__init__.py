"""ckptio reads, writes and converts the checkpoint files of machine-learning models.

The public names are loaded when they are first used, so that importing the package (as the command
line does for ``--help``) costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptio.checkpoint import Checkpoint, MemoryCheckpoint, Span, TensorSpec
    from ckptio.dtypes import DType
    from ckptio.errors import (
        AmbiguousFormatError,
        ChangedCheckpointError,
        CheckpointError,
        CkptError,
        CorruptCheckpointError,
        FormatError,
        IncompleteCheckpointError,
        LossyConversionError,
        OptionError,
        PluginConflictError,
        PluginError,
        PluginLoadError,
        PluginVersionError,
        Problem,
        UndetectedFormatError,
        UnknownFormatError,
        UnsupportedError,
    )
    from ckptio.files import Cursor, FileCheckpoint, SourceFile, open_source
    from ckptio.formats import Capabilities, Confidence, Dependency, Format, Match, Option, Output, Probe
    from ckptio.hookspecs import hookimpl
    from ckptio.limits import Limits, current_limits, raised_limits

__all__ = [
    "AmbiguousFormatError",
    "Capabilities",
    "ChangedCheckpointError",
    "Checkpoint",
    "CheckpointError",
    "CkptError",
    "Confidence",
    "CorruptCheckpointError",
    "Cursor",
    "DType",
    "Dependency",
    "FileCheckpoint",
    "Format",
    "FormatError",
    "IncompleteCheckpointError",
    "Limits",
    "LossyConversionError",
    "Match",
    "MemoryCheckpoint",
    "Option",
    "OptionError",
    "Output",
    "PluginConflictError",
    "PluginError",
    "PluginLoadError",
    "PluginVersionError",
    "Probe",
    "Problem",
    "SourceFile",
    "Span",
    "TensorSpec",
    "UndetectedFormatError",
    "UnknownFormatError",
    "UnsupportedError",
    "current_limits",
    "hookimpl",
    "open_source",
    "raised_limits",
]

_HOMES = ("errors", "limits", "hookspecs", "dtypes", "checkpoint", "files", "formats")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"ckptio.{home}")
            if name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module 'ckptio' has no attribute {name!r}")
