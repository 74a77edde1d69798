"""ckptio reads, writes and converts the checkpoint files of machine-learning models.

The public names are loaded when they are first used, so that importing the package (as the command
line does for ``--help``) costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptio.checkpoint import Checkpoint, Span, TensorSpec
    from ckptio.conversion import convert
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
    from ckptio.format import Capabilities, Confidence, Dependency, Format, Match, Option, Output, Probe
    from ckptio.hookspecs import hookimpl
    from ckptio.limits import Limits, current_limits, raised_limits
    from ckptio.memory import MemoryCheckpoint
    from ckptio.reading import load, open  # noqa: A004
    from ckptio.registry import FormatInfo, formats
    from ckptio.report import ConversionReport, Fate
    from ckptio.saving import save
    from ckptio.sidecar import SidecarWarning

__all__ = [
    "AmbiguousFormatError",
    "Capabilities",
    "ChangedCheckpointError",
    "Checkpoint",
    "CheckpointError",
    "CkptError",
    "Confidence",
    "ConversionReport",
    "CorruptCheckpointError",
    "Cursor",
    "DType",
    "Dependency",
    "Fate",
    "FileCheckpoint",
    "Format",
    "FormatError",
    "FormatInfo",
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
    "SidecarWarning",
    "SourceFile",
    "Span",
    "TensorSpec",
    "UndetectedFormatError",
    "UnknownFormatError",
    "UnsupportedError",
    "convert",
    "current_limits",
    "formats",
    "hookimpl",
    "load",
    "open",
    "open_source",
    "raised_limits",
    "save",
]

_HOMES = (
    "errors",
    "limits",
    "hookspecs",
    "dtypes",
    "checkpoint",
    "memory",
    "files",
    "format",
    "registry",
    "report",
    "sidecar",
    "reading",
    "conversion",
    "saving",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"ckptio.{home}")
            if name in module.__all__:
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module 'ckptio' has no attribute {name!r}")
