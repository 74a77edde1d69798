"""What a reader returns and a writer is given: named tensors, leaves, metadata and ties."""

from __future__ import annotations

import abc
import difflib
import hashlib
import mmap as mmap_module
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from ckptio.errors import PluginError, Problem, UnsupportedError
from ckptio.specs import TensorSpec

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["CHUNK_BYTES", "Checkpoint", "OpenFile", "Sink", "Span", "TensorSpec"]

CHUNK_BYTES = 4 << 20
"""The default size of a chunk in bytes: large enough to be fast, small beside any memory bound."""


class OpenFile(Protocol):
    """An open file that is read by position, as `Span` needs it."""

    @property
    def path(self) -> Path: ...

    def is_at(self, path: Path) -> bool: ...

    def fileno(self) -> int: ...

    def read_at(self, offset: int, size: int) -> bytes: ...

    def read_into(self, buffer: memoryview, offset: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of an open file: ``length`` bytes from ``offset``.

    It holds the open file and not its path, so that what was opened stays what is read.
    """

    file: OpenFile
    offset: int
    length: int


class Sink(Protocol):
    """Where `Checkpoint.copy_to` puts the bytes: an open output of ``ckptio.output``, or a test's own."""

    def write(self, data: bytes | memoryview) -> None: ...

    def copy(self, span: Span) -> None: ...


class Checkpoint(abc.ABC):
    """Named tensors with what belongs to them; read-only, and safe to read from several threads.

    An author of a reader writes ``specs`` and ``chunks`` (or takes `ckptio.files.FileCheckpoint`,
    which has both); everything else has a default. Use it as a context manager, or call `close`.
    """

    @property
    @abc.abstractmethod
    def specs(self) -> Mapping[str, TensorSpec]:
        """Every stored tensor by name, in file order, known from the header alone; no aliases."""

    @abc.abstractmethod
    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        """Yield the elements of a stored tensor as bytes: little-endian, C order, whole elements.

        No chunk is larger than ``max_bytes`` (but one element always fits). An adapter that leaves the
        elements alone hands on the very iterator of its base: a writer may know it, and carry what is behind.
        """

    def spans(self, name: str) -> Sequence[Span] | None:
        """Return the pieces of open files that, read in turn, are the tensor's bytes, or None."""
        return None

    def crc32(self, name: str) -> int | None:
        """Return the CRC-32 of a stored tensor's bytes where the file says it, else None; nothing is read."""
        return None

    @property
    def aliases(self) -> Mapping[str, str]:
        """The ties: each further name of a tensor, and the name in ``specs`` that it shares storage with."""
        return {}

    @property
    def leaves(self) -> Mapping[str, Any]:
        """The values beside the tensors, by path: the closed set of `ckptio.leaves`."""
        return {}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the file says of itself, as JSON values; ``config`` holds the hyperparameters."""
        return {}

    def companions(self) -> Mapping[str, bytes]:
        """Return small files, by name, that belong beside the weights in a model's folder.

        They are made of what the checkpoint's own file says, as ``tokenizer.json`` of a GGUF's tokens.
        """
        return {}

    def omissions(self) -> Sequence[Problem]:
        """What the file holds and this checkpoint does not; reading may be needed to know."""
        return ()

    def check_unchanged(self) -> None:  # noqa: B027
        """Raise `ChangedCheckpointError` when an open source is no longer what was opened."""

    def reads(self, path: Path) -> bool:
        """Return whether ``path``, which exists, is one of the files that the tensors are read from."""
        spans = (span for name in self.specs for span in self.spans(name) or ())
        return any(file.is_at(path) for file in {id(span.file): span.file for span in spans}.values())

    def close(self) -> None:  # noqa: B027
        """Release the open files; reading a tensor afterwards is a ValueError."""

    def names(self) -> list[str]:
        """Return all names, in file order, each followed by its aliases."""
        further: dict[str, list[str]] = {}
        for alias, name in self.aliases.items():
            further.setdefault(name, []).append(alias)
        return [each for name in self.specs for each in (name, *further.get(name, ()))]

    def canonical(self, name: str) -> str:
        """Return the name under which ``name`` is stored; KeyError with the nearest names."""
        if name in self.specs:
            return name
        try:
            return self.aliases[name]
        except KeyError:
            near = difflib.get_close_matches(name, self.names(), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise KeyError(f"no tensor {name!r}{hint}") from None

    def __len__(self) -> int:
        return len(self.specs) + len(self.aliases)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return name in self.specs or name in self.aliases

    def read(self, name: str, *, mmap: bool = False) -> npt.NDArray[Any]:
        """Return a tensor (or alias) as an array of its own, with its true dtype.

        With ``mmap=True`` the array is a read-only view of the file where it is one aligned piece.
        That is unsafe on a file that others rewrite: a file cut under a map kills the process.

        Raises `PluginError` when the reader gives another number of bytes than its spec says.
        """
        if sys.byteorder != "little":
            raise UnsupportedError("tensors can be read as arrays on little-endian machines only")
        spec = self.specs[self.canonical(name)]
        spans = self.spans(spec.name)
        if mmap and spans is not None and len(spans) == 1 and spec.nbytes:
            view = _mapped(spans[0], spec.dtype.numpy.alignment)
            if view is not None:
                return view.view(spec.dtype.numpy).reshape(spec.shape)
        data = np.empty(spec.nbytes, np.uint8)
        self.read_into(spec.name, data.data)
        return data.view(spec.dtype.numpy).reshape(spec.shape)

    def read_into(self, name: str, buffer: memoryview) -> None:
        """Fill ``buffer``, of as many bytes as the tensor has, with its bytes: little-endian, C order.

        Raises ValueError for a buffer of another size, and `PluginError` as `read` does.
        """
        spec, position = self.specs[self.canonical(name)], 0
        if buffer.nbytes != spec.nbytes:
            raise ValueError(f"{name} has {spec.nbytes} bytes, the buffer {buffer.nbytes}")
        spans = self.spans(spec.name)
        if spans is not None:
            for span in spans:
                span.file.read_into(buffer[position : position + span.length], span.offset)
                position += span.length
        else:
            for chunk in self.chunks(spec.name):
                end = position + len(chunk)
                if end <= spec.nbytes:
                    buffer[position:end] = chunk
                position = end
        if position != spec.nbytes:
            raise PluginError(f"{spec.name}: the reader gave {position} bytes instead of {spec.nbytes}")

    def copy_to(self, name: str, out: Sink) -> None:
        """Append a tensor's bytes to ``out``: by the kernel where there are spans, else chunk by chunk."""
        spec = self.specs[self.canonical(name)]
        spans = self.spans(spec.name)
        if spans is None:
            for chunk in self.chunks(spec.name):
                out.write(chunk)
        else:
            for span in spans:
                out.copy(span)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a tensor's bytes, in hexadecimal."""
        found = hashlib.sha256()
        for chunk in self.chunks(self.canonical(name)):
            found.update(chunk)
        return found.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _mapped(span: Span, alignment: int) -> npt.NDArray[np.uint8] | None:
    """Map a span read-only; None where it is not aligned, or the file system does not map files."""
    if span.offset % alignment:
        return None
    start = span.offset - span.offset % mmap_module.ALLOCATIONGRANULARITY
    skip = span.offset - start
    try:
        mapped = mmap_module.mmap(
            span.file.fileno(), skip + span.length, access=mmap_module.ACCESS_READ, offset=start
        )
    except (OSError, ValueError):
        return None
    return np.frombuffer(mapped, np.uint8, span.length, skip)
