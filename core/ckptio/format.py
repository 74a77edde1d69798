"""What a plugin implements and is given: `Format`, its declared `Capabilities`, and their small parts."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ckptio.checkpoint import Checkpoint, TensorSpec
from ckptio.dtypes import DType
from ckptio.errors import OptionError, Problem
from ckptio.files import SourceFile
from ckptio.output import Output

__all__ = [
    "SHARD_SIZE",
    "Capabilities",
    "Confidence",
    "Dependency",
    "Format",
    "Match",
    "Option",
    "Output",
    "Probe",
    "Problem",
    "capability_problems",
    "parse_flag",
    "parse_options",
]

SHARD_SIZE = "max_shard_size"
"""The option by which a format that has it makes a directory of shards."""
_PROBE_HEAD = 4 << 10
_PROBE_READ = 64 << 10


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a reader (``-O``) or writer (``-o``).

    ``type`` turns the text of the command line into the value; it raises ValueError with the reason.
    ``choices``, where given, are the only values.
    """

    name: str
    type: Callable[[str], Any]
    help: str
    default: Any = None
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Dependency:
    """An optional dependency: the module to look for, and what to pass to ``pip install``."""

    module: str
    install: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a format can hold, as data.

    ``layout`` names the one layout of ``ckptio.models`` whose tensor names the format is bound to
    (None: any names); ``runs_layout`` the one that the programs for such files run, where it holds any names.
    What of aliases, leaves and metadata a format has no room for is recorded in
    the sidecar file, and its aliases are stored as full tensors. ``checksum`` says whether the format
    carries one over its data, which reading checks.
    """

    dtypes: frozenset[DType]
    layout: str | None = None
    runs_layout: str | None = None
    holds: str = "any"
    aliases: bool = False
    leaves: bool = False
    metadata: bool = False
    nesting: bool = False
    zero_dim: bool = True
    empty: bool = True
    shards: bool = False
    max_tensor_bytes: int | None = None
    checksum: bool = False
    writes: bool = True
    dependency: Dependency | None = None


class Confidence(enum.IntEnum):
    """How sure a format is that a file is its own."""

    NO = 0
    NAME = 1
    SURE = 2


@dataclass(frozen=True, slots=True)
class Match:
    """A format's answer about a file: how sure, and why."""

    confidence: Confidence
    reason: str


class Probe:
    """What all formats are shown of a path when one of them is sought.

    ``name`` is the last part of the path, ``head`` the first 4 KiB, ``size`` the bytes of the file;
    a directory has an empty head, size 0 and its sorted ``listing`` (None for a file).
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.listing: tuple[str, ...] | None = None
        self.head, self.size = b"", 0
        self._file: SourceFile | None = None
        if path.is_dir():
            self.listing = tuple(sorted(entry.name for entry in path.iterdir()))
        else:
            self._file = SourceFile(path)
            self.size = self._file.size
            self.head = self.read_at(0, _PROBE_HEAD)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes (64 KiB at most) from ``offset``; fewer at the end of the file."""
        if self._file is None or offset >= self.size:
            return b""
        return self._file.read_at(offset, min(size, _PROBE_READ, self.size - offset))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Format(abc.ABC):
    """One checkpoint format: what it is called, what it can hold, and how it is read and written.

    ``suffixes`` are file name endings (``.ckpt``), ``magic`` the byte strings that a file of this
    format starts with. Where neither settles the matter, `match` is asked.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    magic: ClassVar[tuple[bytes, ...]] = ()
    capabilities: ClassVar[Capabilities]
    read_options: ClassVar[tuple[Option, ...]] = ()
    write_options: ClassVar[tuple[Option, ...]] = ()

    @abc.abstractmethod
    def open(self, path: Path, options: Mapping[str, Any]) -> Checkpoint:
        """Read the header of ``path``; ``options`` has a value for every one of ``read_options``.

        Raises `CheckpointError` for a damaged file and `UnsupportedError` for a valid one that is
        something else. The result owns what it has open.
        """

    def write(self, checkpoint: Checkpoint, out: Output, options: Mapping[str, Any]) -> None:
        """Write all of ``checkpoint`` with one ``checkpoint.copy_to`` per tensor; `check` has passed."""
        raise NotImplementedError(f"{self.name} is read only")

    @property
    def makes_shards(self) -> bool:
        """True when a directory of shards is made where the option `SHARD_SIZE` is given."""
        return any(option.name == SHARD_SIZE for option in self.write_options)

    def check(self, checkpoint: Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
        """Return everything of ``checkpoint`` that this format cannot hold, before anything is written."""
        return capability_problems(self.capabilities, checkpoint.specs.values())

    def alters(self, checkpoint: Checkpoint, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the tensors that the writer quantises, each with the type that it comes to have."""
        return {}

    def owns(self, key: str) -> bool:
        """Say whether the metadata under ``key`` are what this format's own files say of themselves.

        Such a note of the source is not recorded beside a file that says another: under the format's name
        stands what its reader notes, and a writer may work out more from the tensors.
        """
        return key == self.name

    def match(self, probe: Probe) -> Match:
        """Say whether the probed file is of this format, from its content."""
        return Match(Confidence.NO, "not recognised")


def capability_problems(capabilities: Capabilities, specs: Iterable[TensorSpec]) -> list[Problem]:
    """Compare tensors with what is declared; one `Problem` per tensor and reason."""
    problems: list[Problem] = []
    for spec in specs:
        if spec.dtype not in capabilities.dtypes:
            problems.append(Problem(spec.name, f"dtype {spec.dtype.value} cannot be stored"))
        if not capabilities.zero_dim and spec.shape == ():
            problems.append(Problem(spec.name, "a 0-d tensor cannot be stored"))
        if not capabilities.empty and spec.size == 0:
            problems.append(Problem(spec.name, f"an empty tensor of shape {spec.shape} cannot be stored"))
        limit = capabilities.max_tensor_bytes
        if limit is not None and spec.nbytes > limit:
            problems.append(Problem(spec.name, f"{spec.nbytes} bytes are more than the largest, {limit}"))
    return problems


def parse_flag(text: str) -> bool:
    """Return what ``true`` or ``false`` says: the `Option.type` of a switch; ValueError for anything else."""
    values = {"true": True, "false": False}
    if text.lower() not in values:
        raise ValueError("it is true or false")
    return values[text.lower()]


def parse_options(
    declared: Iterable[Option], given: Mapping[str, Any] | None, *, owner: str, flag: str
) -> dict[str, Any]:
    """Return a value for every declared option: the given one, parsed when it is text, or the default.

    Raises `OptionError` for an unknown key (it lists the known ones) and for a bad value.
    """
    options = {option.name: option for option in declared}
    values = {name: option.default for name, option in options.items()}
    for key, value in (given or {}).items():
        if key not in options:
            known = ", ".join(sorted(options)) or "none"
            raise OptionError(f"{owner} has no option {key!r} ({flag}); known: {known}")
        option = options[key]
        try:
            parsed = option.type(value) if isinstance(value, str) else value
        except ValueError as error:
            raise OptionError(f"{owner}: bad value {value!r} for {flag} {key}: {error}") from None
        if option.choices and parsed not in option.choices:
            known = ", ".join(map(str, option.choices))
            raise OptionError(f"{owner}: {flag} {key}={value} is not one of {known}")
        values[key] = parsed
    return values
