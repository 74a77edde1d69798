"""The errors of ckptio, and the value in which a loss is described.

::

    CkptError
    ├── FormatError                 which format?
    │   ├── UnknownFormatError      (LookupError) installed names, nearest match
    │   ├── UndetectedFormatError   (ValueError) what was tried, and each reason
    │   └── AmbiguousFormatError    (ValueError) the candidates, and the flag to pass
    ├── OptionError                 (ValueError) an argument that cannot be meant as it stands
    ├── PluginError                 the plugin's fault: entry point, distribution, version
    │   ├── PluginLoadError         (ImportError)
    │   ├── PluginConflictError     (ValueError)
    │   └── PluginVersionError      (ImportError)
    ├── CheckpointError             the file's fault: path, offset, expected, found
    │   ├── CorruptCheckpointError  (ValueError)
    │   ├── ChangedCheckpointError  (RuntimeError) rewritten by someone else while it was being read
    │   └── IncompleteCheckpointError   (FileNotFoundError) a training checkpoint that was never finished
    └── UnsupportedError            (ValueError) valid, but this format cannot hold it
        └── LossyConversionError    every loss listed, and the option that accepts it

An ``OSError`` of the system (no such file, disk full) passes through as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "AmbiguousFormatError",
    "ChangedCheckpointError",
    "CheckpointError",
    "CkptError",
    "CorruptCheckpointError",
    "FormatError",
    "IncompleteCheckpointError",
    "LossyConversionError",
    "OptionError",
    "PluginConflictError",
    "PluginError",
    "PluginLoadError",
    "PluginVersionError",
    "Problem",
    "UndetectedFormatError",
    "UnknownFormatError",
    "UnsupportedError",
    "listed",
    "shown",
    "some",
]

_LISTED = 20
_SOME = 8


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a target cannot hold, or that reading has left behind.

    ``where`` is the tensor, leaf or metadata key (empty: the whole checkpoint). ``allow`` is the
    word that accepts the loss; without one the problem is final.
    """

    where: str
    what: str
    allow: str | None = None

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} (accept with --allow {self.allow})" if self.allow else text


class CkptError(Exception):
    """The root of everything that ckptio raises on purpose."""


class FormatError(CkptError):
    """No one format can be chosen."""


class UnknownFormatError(FormatError, LookupError):
    """No installed plugin has this name."""

    # LookupError's own str() would quote the message like a key.
    __str__ = Exception.__str__


class UndetectedFormatError(FormatError, ValueError):
    """No installed format recognises the file."""


class AmbiguousFormatError(FormatError, ValueError):
    """Several formats recognise the file equally well."""


class OptionError(CkptError, ValueError):
    """An option, a hyperparameter or another argument that cannot be meant as it stands."""


class PluginError(CkptError):
    """A plugin is at fault."""


class PluginLoadError(PluginError, ImportError):
    """The plugin cannot be imported, or its hook does not return a format."""


class PluginConflictError(PluginError, ValueError):
    """Two distributions claim one format name."""


class PluginVersionError(PluginError, ImportError):
    """The plugin was made for another version of the plugin API."""


class CheckpointError(CkptError):
    """A file is at fault.

    The message reads ``path: what (at byte offset)``; the parts are attributes too.
    """

    def __init__(self, what: str, *, path: str | Path | None = None, offset: int | None = None) -> None:
        self.what = what
        self.path = None if path is None else str(path)
        self.offset = offset
        where = f" (at byte {offset})" if offset is not None else ""
        prefix = f"{self.path}: " if self.path is not None else ""
        super().__init__(f"{prefix}{what}{where}")


class CorruptCheckpointError(CheckpointError, ValueError):
    """The bytes are not a whole and valid checkpoint of this format."""


class ChangedCheckpointError(CheckpointError, RuntimeError):
    """The source was rewritten while it was being read."""


class IncompleteCheckpointError(CheckpointError, FileNotFoundError):
    """A training checkpoint that was never finished."""


class UnsupportedError(CkptError, ValueError):
    """The content is valid, but it cannot be held or read by this format; ``problems`` lists why."""

    def __init__(self, what: str, problems: Iterable[Problem] = ()) -> None:
        self.problems = tuple(problems)
        lines = [what, *(f"  {problem}" for problem in self.problems)]
        super().__init__("\n".join(lines))


class LossyConversionError(UnsupportedError):
    """Something would be lost, and each loss can be accepted by the option that its line names."""


def listed(lines: Sequence[str]) -> str:
    """Return lines that stand below a message: indented, the first twenty, and how many more there are."""
    more = [f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return "\n".join(f"  {line}" for line in [*lines[:_LISTED], *more])


def shown(value: object, most: int = 80) -> str:
    """Return a value as Python writes it, cut after ``most`` characters."""
    text = repr(value)
    return text if len(text) <= most else text[:most] + "…"


def some(names: Sequence[str]) -> str:
    """Return names within a message: the first eight, and an ellipsis where there are more."""
    return ", ".join(names[:_SOME]) + (", …" if len(names) > _SOME else "")
