"""From the entries of an archive, or one ``.npy`` file, to a checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptio import (
    Checkpoint,
    CorruptCheckpointError,
    DType,
    MemoryCheckpoint,
    Problem,
    SourceFile,
    Span,
    TensorSpec,
    UnsupportedError,
    current_limits,
)
from ckptio.archive import ZipArchive, ZipEntry
from ckptio.checkpoint import CHUNK_BYTES
from ckptio.crc import shifted_crc32
from ckptio.files import read_chunks
from ckptio.limits import shape_problem
from ckptio_npz.dtypes import NOTE, parse_note, plain_dtype, reason_against
from ckptio_npz.header import ArrayHeader, carrier, parse_header

__all__ = ["NpzCheckpoint", "read_archive", "read_array"]

_SUFFIX = ".npy"


@dataclass(frozen=True, slots=True)
class _Array:
    """A tensor, how it lies in the file, and where: ``raw`` yields its bytes as they are there."""

    spec: TensorSpec
    header: ArrayHeader
    raw: Callable[[int], Iterator[memoryview]]
    span: Span | None
    crc: int | None = None

    @property
    def transposed(self) -> bool:
        """True when the elements stand in Fortran's order and that is not also C's."""
        return self.header.fortran and sum(size != 1 for size in self.spec.shape) > 1

    @property
    def as_is(self) -> bool:
        return not (self.transposed or self.header.big_endian)


class NpzCheckpoint(Checkpoint):
    """The arrays of an open file; what lies as it should, in C order and little-endian, has spans.

    An array in Fortran's order is brought into C order in memory, one at a time and whole.
    """

    def __init__(self, file: SourceFile, arrays: Mapping[str, _Array], omitted: Sequence[Problem]) -> None:
        self._file = file
        self._arrays = arrays
        self._specs = {name: array.spec for name, array in arrays.items()}
        self._omitted = omitted

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return self._specs

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        array = self._arrays[name]
        itemsize = array.spec.dtype.itemsize
        step = max(1, max_bytes // itemsize) * itemsize
        stored = _stored_dtype(array)
        if array.transposed:
            flat = np.empty(array.spec.size, stored)
            position, target = 0, flat.view(np.uint8)
            for chunk in array.raw(CHUNK_BYTES):
                target[position : position + len(chunk)] = chunk
                position += len(chunk)
            whole = flat.reshape(array.spec.shape, order="F")
            yield from MemoryCheckpoint({name: whole}).chunks(name, max_bytes)
        elif array.header.big_endian:
            for chunk in array.raw(step):
                yield np.frombuffer(chunk, stored).byteswap().view(np.uint8).data
        else:
            yield from array.raw(step)

    def spans(self, name: str) -> Sequence[Span] | None:
        array = self._arrays[name]
        return [array.span] if array.as_is and array.span is not None else None

    def crc32(self, name: str) -> int | None:
        array = self._arrays[name]
        if array.crc is None or not array.as_is:
            return None
        # The file has the CRC of header and elements together.
        return array.crc ^ shifted_crc32(array.header.crc, array.spec.nbytes)

    def omissions(self) -> Sequence[Problem]:
        return self._omitted

    def check_unchanged(self) -> None:
        self._file.check_unchanged()

    def close(self) -> None:
        self._file.close()


def read_array(file: SourceFile, name: str, options: Mapping[str, Any]) -> NpzCheckpoint:
    """Return a checkpoint of the one array that ``file`` is."""
    found = _read_header(file, name, lambda size: file.read_at(0, min(size, file.size)), 0)
    dtype = plain_dtype(found, options["void"])
    if dtype is None:
        raise UnsupportedError(f"{file.path}: {reason_against(found)}")
    spec = _spec(file, name, dtype, found, file.size, 0)
    span = Span(file, found.size, spec.nbytes)
    raw = functools.partial(read_chunks, (span,), itemsize=dtype.itemsize)
    return NpzCheckpoint(file, {name: _Array(spec, found, raw, span)}, ())


def read_archive(file: SourceFile, options: Mapping[str, Any]) -> NpzCheckpoint:
    """Return a checkpoint of the arrays of an archive.

    Raises `UnsupportedError` that lists the entries that are no tensors, unless ``skip_unknown``.
    """
    archive = ZipArchive(file, names_are_paths=False)
    noted = _read_note(archive)
    arrays: dict[str, _Array] = {}
    problems: list[Problem] = []
    for entry in archive.entries.values():
        name = entry.name.removesuffix(_SUFFIX)
        if entry.name == NOTE + _SUFFIX:
            continue
        if name in arrays:
            raise CorruptCheckpointError(
                f"two arrays are named {name!r}", path=file.path, offset=entry.offset
            )
        found = _read_header(file, name, functools.partial(_beginning, archive, entry), entry.offset)
        dtype = noted.pop(name, None)
        if dtype is None:
            dtype = plain_dtype(found, options["void"])
        elif found.kind != carrier(dtype).numpy.str[1:]:
            what = f"array {name!r} is noted as {dtype.value}, but stored as {found.descr[:80]!r}"
            raise CorruptCheckpointError(what, path=file.path, offset=entry.offset)
        if dtype is None:
            problems.append(Problem(name, reason_against(found), allow="skipped"))
            continue
        spec = _spec(file, name, dtype, found, entry.size, entry.offset)
        arrays[name] = _in_archive(archive, entry, spec, found)
    if noted:
        what = f"the note of dtypes names arrays that are not there: {', '.join(sorted(noted))[:200]}"
        raise CorruptCheckpointError(what, path=file.path)
    if problems and not options["skip_unknown"]:
        final = [Problem(problem.where, problem.what) for problem in problems]
        what = f"{file.path}: some arrays are no tensors; -O skip_unknown=true leaves them out"
        raise UnsupportedError(what, final)
    return NpzCheckpoint(file, arrays, problems)


def _in_archive(archive: ZipArchive, entry: ZipEntry, spec: TensorSpec, header: ArrayHeader) -> _Array:
    raw = functools.partial(archive.chunks, entry, start=header.size)
    span = Span(archive.file, entry.offset + header.size, spec.nbytes) if entry.stored else None
    return _Array(spec, header, raw, span, entry.crc)


def _beginning(archive: ZipArchive, entry: ZipEntry, size: int) -> bytes:
    size = min(size, entry.size)
    if entry.stored:
        # Opening looks at no data, so it does not check any either.
        return archive.file.read_at(entry.offset, size)
    return b"".join(archive.chunks(entry, CHUNK_BYTES, 0, size))


def _read_header(file: SourceFile, name: str, beginning: Callable[[int], bytes], offset: int) -> ArrayHeader:
    try:
        return parse_header(beginning)
    except ValueError as error:
        if isinstance(error, CorruptCheckpointError):
            raise
        what = f"array {_shown(name)} cannot be read: {error}"
        raise CorruptCheckpointError(what, path=file.path, offset=offset) from None


def _read_note(archive: ZipArchive) -> dict[str, DType]:
    """Return the dtypes that the archive's own note gives, by name; none where there is no note."""
    entry = archive.entries.get(NOTE + _SUFFIX)
    if entry is None:
        return {}
    data = archive.read(entry, current_limits().header_bytes)
    found = _read_header(archive.file, NOTE, lambda size: data[:size], entry.offset)
    try:
        if found.kind != "u1" or found.shape != (len(data) - found.size,):
            raise ValueError("it is not a u8 array of one dimension")
        return parse_note(data[found.size :])
    except ValueError as error:
        what = f"the array {NOTE!r} should note the dtypes of others: {error}"
        raise CorruptCheckpointError(what, path=archive.file.path, offset=entry.offset) from None


def _spec(
    file: SourceFile, name: str, dtype: DType, header: ArrayHeader, size: int, offset: int
) -> TensorSpec:
    """Return the spec of an array of ``size`` bytes with its header, when that is what it says."""
    spec = TensorSpec(name, dtype, header.shape)
    limit = current_limits().dimensions
    problem = shape_problem(spec.shape, dtype.itemsize)
    if len(spec.shape) > limit:
        problem = f"{len(spec.shape)} dimensions are more than the limit of {limit}"
    elif problem is None and header.size + spec.nbytes != size:
        problem = (
            f"{size - header.size} bytes of data, but {dtype.value} of shape {spec.shape} has {spec.nbytes}"
        )
    if problem:
        what = f"array {_shown(name)}: {problem}"
        raise CorruptCheckpointError(what, path=file.path, offset=offset)
    return spec


def _stored_dtype(array: _Array) -> np.dtype[Any]:
    stored = carrier(array.spec.dtype).numpy
    return stored.newbyteorder(">") if array.header.big_endian else stored


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:80] + "…")
