"""ckptio reads, writes and converts the checkpoint files of machine-learning models.

The public names are loaded when they are first used, so that importing the package (as the command
line does for ``--help``) costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptio.lazily import getter

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

__getattr__ = getter(
    __name__,
    __all__,
    (
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
    ),
)
