"""From a tree of records to a checkpoint: where each tensor's elements lie, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ckptio import (
    CorruptCheckpointError,
    FileCheckpoint,
    Problem,
    SourceFile,
    Span,
    TensorSpec,
    UnsupportedError,
    current_limits,
)
from ckptio.archive import ZipArchive, ZipEntry
from ckptio.checkpoint import CHUNK_BYTES
from ckptio.files import read_chunks
from ckptio.limits import shape_problem
from ckptio_torch.reasons import reason
from ckptio_torch.records import Tensor
from ckptio_torch.source import Reader
from ckptio_torch.tree import Tree, flatten
from ckptio_torch.unpickler import Unpickler
from ckptio_torch.views import is_contiguous, reach, view_chunks

__all__ = ["Place", "TorchCheckpoint", "read_tree"]

_LISTED, _SHOWN = 20, 200
_UNFOLDED = 64 << 20
"""Bytes to which a view may unfold elements that it has several times, when the storage is smaller."""
_INFLATED = 64 << 20
"""Bytes of a compressed storage that are held at once for a view that is not contiguous."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a storage lies: ``size`` bytes from ``offset`` of the file, or in a compressed ``entry``."""

    offset: int
    size: int
    crc: int | None = None
    entry: ZipEntry | None = None


def read_tree(reader: Reader, path: Path, *, skip_unknown: bool) -> Tree:
    """Read one pickle and name what it holds.

    Raises `UnsupportedError` that lists everything which is not on the list of what is read, unless
    ``skip_unknown``; then it is what the tree says was left out.
    """
    unpickler = Unpickler(reader)
    value = unpickler.load()
    tree = flatten(value, unpickler.budget, path)
    tree.storages = unpickler.storages
    lines = [f"{name[:_SHOWN]}: {reason(name)} (at byte {at})" for name, at in unpickler.unknown.items()]
    lines += [f"{each.where[:_SHOWN] or 'the whole'}: {each.what[:_SHOWN]}" for each in tree.left_out]
    if lines and not skip_unknown:
        some = lines[:_LISTED] + ([f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else [])
        raise UnsupportedError(
            f"{path}: the pickle names what is not read, and nothing of it was run; "
            "-O skip_unknown=true reads the rest without it",
            [Problem("", line) for line in some],
        )
    return tree


class TorchCheckpoint(FileCheckpoint):
    """The tensors of a file of torch: views of storages, each of which lies in one piece.

    ``places`` are the storages by key. Elements are swapped where the file is big-endian.
    """

    def __init__(
        self,
        file: SourceFile,
        tree: Tree,
        places: Mapping[str, Place],
        *,
        archive: ZipArchive | None = None,
        swap: bool = False,
    ) -> None:
        self._archive, self._swap = archive, swap
        self._views: dict[str, Tensor] = {}
        self._places = places
        aliases: dict[str, str] = {}
        seen: dict[tuple[Any, ...], str] = {}
        for name, tensor in tree.tensors.items():
            self._check(file, name, tensor)
            same = seen.setdefault(_identity(tensor), name) if 0 not in tensor.shape else name
            if same == name:
                self._views[name] = tensor
            else:
                aliases[name] = same
        specs = {name: TensorSpec(name, each.dtype, each.shape) for name, each in self._views.items()}
        super().__init__(file, specs, {}, aliases=aliases, leaves=tree.leaves, metadata=_metadata(tree))
        self._left_out = tree.left_out

    def omissions(self) -> Sequence[Problem]:
        return self._left_out

    def spans(self, name: str) -> Sequence[Span] | None:  # type: ignore[override]
        tensor, place = self._view(name)
        if place.entry is not None or self._is_swapped(tensor):
            return None
        if not is_contiguous(tensor.shape, tensor.strides) and 0 not in tensor.shape:
            return None
        return (Span(self.file, place.offset + _first_byte(tensor), self.specs[name].nbytes),)

    def crc32(self, name: str) -> int | None:
        tensor, place = self._view(name)
        whole = self.spans(name) is not None and self.specs[name].nbytes == place.size
        return place.crc if whole and _first_byte(tensor) == 0 else None

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        self.file.fileno()
        spec = self.specs[name]
        tensor, place = self._view(name)
        if spec.size == 0:
            return iter(())
        start, itemsize = _first_byte(tensor), spec.dtype.itemsize
        if not is_contiguous(tensor.shape, tensor.strides):
            fetch = self._fetch(tensor, place)
            pieces = view_chunks(fetch, tensor.shape, tensor.strides, start // itemsize, itemsize, max_bytes)
        elif place.entry is None:
            span = Span(self.file, place.offset + start, spec.nbytes)
            pieces = read_chunks((span,), max_bytes, itemsize)
        else:
            assert self._archive is not None
            step = max(1, max_bytes // itemsize) * itemsize
            pieces = self._archive.chunks(place.entry, step, start, start + spec.nbytes)
        return _swapped(pieces, tensor) if self._is_swapped(tensor) else pieces

    def _view(self, name: str) -> tuple[Tensor, Place]:
        tensor = self._views[name]
        return tensor, self._places[tensor.storage.key]

    def _is_swapped(self, tensor: Tensor) -> bool:
        return self._swap and tensor.dtype.itemsize > 1

    def _fetch(self, tensor: Tensor, place: Place) -> Callable[[int, int], bytes]:
        if place.entry is None:
            return lambda offset, size: self.file.read_at(place.offset + offset, size)
        assert self._archive is not None
        first = _first_byte(tensor)
        length = reach(tensor.shape, tensor.strides) * tensor.dtype.itemsize
        held = b"".join(self._archive.chunks(place.entry, CHUNK_BYTES, first, first + length))
        return lambda offset, size: held[offset - first : offset - first + size]

    def _check(self, file: SourceFile, name: str, tensor: Tensor) -> None:
        """Hold a view against its storage; everything is counted before anything is allocated."""

        def error(what: str) -> CorruptCheckpointError:
            return CorruptCheckpointError(f"{name[:200]!r}: {what}", path=file.path)

        storage, itemsize = tensor.storage, tensor.dtype.itemsize
        if len(tensor.shape) > current_limits().dimensions:
            raise error(
                f"{len(tensor.shape)} dimensions; no more than {current_limits().dimensions} are read"
            )
        problem = shape_problem(tensor.shape, itemsize)
        if problem:
            raise error(problem)
        place = self._places.get(storage.key)
        if place is None:
            raise error(f"the storage {storage.key[:80]!r} is not in the file")
        if place.size < storage.root_nbytes:
            raise error(f"the storage {storage.key[:80]!r} has {place.size} bytes, not {storage.root_nbytes}")
        needed = reach(tensor.shape, tensor.strides)
        if needed and (tensor.offset + needed) * itemsize > storage.nbytes:
            raise error(
                f"it reaches to element {tensor.offset + needed} of a storage of {storage.nbytes // itemsize}"
            )
        total = TensorSpec(name, tensor.dtype, tensor.shape).nbytes
        if total > max(_UNFOLDED, storage.nbytes):
            raise error(f"it unfolds a storage of {storage.nbytes} bytes to {total}")
        strided = not is_contiguous(tensor.shape, tensor.strides)
        if place.entry is not None and strided and needed * itemsize > _INFLATED:
            raise UnsupportedError(
                f"{file.path}: {name[:200]!r} is a strided view of a compressed storage; "
                "pack the archive anew without compression"
            )


def _first_byte(tensor: Tensor) -> int:
    return tensor.storage.start + tensor.offset * tensor.dtype.itemsize if 0 not in tensor.shape else 0


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Return what two tensors have in common that are one view of one storage."""
    strides = None if is_contiguous(tensor.shape, tensor.strides) else tensor.strides
    return tensor.storage.key, _first_byte(tensor), tensor.dtype, tensor.shape, strides


def _metadata(tree: Tree) -> dict[str, Any]:
    """Return the metadata that our own writer put into the file, and the notes on the tree."""
    return {**tree.metadata, "torch": tree.notes} if tree.notes else dict(tree.metadata)


def _swapped(pieces: Iterator[memoryview], tensor: Tensor) -> Iterator[memoryview]:
    itemsize = tensor.dtype.itemsize
    word = itemsize // 2 if tensor.dtype.value.startswith("c") else itemsize
    for piece in pieces:
        yield np.frombuffer(piece, f"u{word}").byteswap().view(np.uint8).data
