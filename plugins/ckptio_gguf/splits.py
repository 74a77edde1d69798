"""One model in several GGUF files, as llama.cpp's gguf-split and the package gguf write it.

::

    model-00001-of-00003.gguf   split.no 0 (u16), split.count 3 (u16), split.tensors.count (i32): of all files
                                the metadata of the model; tensors, or none (--no-tensor-first-split)
    model-00002-of-00003.gguf   the same of split.*, but split.no 1; tensors
    ...

Source: ``gguf-split.cpp`` and ``llama-model-loader.cpp`` of llama.cpp, which insists on these types, finds
the other files by the name of the first, and takes metadata from it alone. A count of 0 or 1 is a whole
file: merging leaves a 0. Unlike llama.cpp, any file of a set may be named.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ckptio
from ckptio import Checkpoint, CorruptCheckpointError, DType, Problem
from ckptio.errors import listed, shown
from ckptio.joined import JoinedCheckpoint
from ckptio_gguf.header import with_notes
from ckptio_gguf.notes import OWN, SPLIT_COUNT, SPLIT_KINDS, SPLIT_NO, SPLIT_TENSORS, Said, note_of
from ckptio_gguf.reading import GgufCheckpoint, open_file
from ckptio_gguf.split_names import SUFFIX, Place, locate, place_of

__all__ = ["SplitCheckpoint", "open_checkpoint"]


class SplitCheckpoint(JoinedCheckpoint):
    """The files of a set, first to last, as one; the metadata are those of the first."""

    def __init__(self, parts: Mapping[str, GgufCheckpoint]) -> None:
        self._by_name = parts
        super().__init__(list(parts.values()), metadata=_metadata(list(parts.values())))

    def companions(self) -> Mapping[str, bytes]:
        return next(iter(self._by_name.values())).companions()

    def omissions(self) -> Sequence[Problem]:
        """The metadata that another file says and the first does not."""
        (first, one), *others = self._by_name.items()
        return [
            Problem(
                f"metadata.{key}",
                f"{file} says {shown(value)}, but those of {first} count",
                "metadata",
            )
            for file, part in others
            for key, value in part.header.metadata.items()
            if key not in (OWN, *SPLIT_KINDS) and not _says(one.header.metadata.get(key), value)
        ]


def open_checkpoint(path: Path, dequantize: DType | None) -> Checkpoint:
    """Open a whole file, the set of which ``path`` is any file, or a directory that holds one of these.

    Raises `CorruptCheckpointError` that lists the files that are missing, or all that is wrong with a set.
    """
    if path.is_dir():
        found = locate(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, f"No file *{SUFFIX} in the directory", str(path))
        path = found
    with contextlib.ExitStack() as opened:
        named = opened.enter_context(open_file(path, dequantize))
        problem = _problem(named.header.said, SPLIT_COUNT)
        if problem:
            raise CorruptCheckpointError(problem, path=path)
        count = _value(named.header.said, SPLIT_COUNT)
        if count in (None, 0, 1):
            _check_whole(path)
            opened.pop_all()
            return named
        place = _place(path, named.header.said)
        parts = {}
        for name in _files(path, place):
            same = name == path.name
            parts[name] = named if same else opened.enter_context(open_file(path.with_name(name), dequantize))
        problems = [*_said_wrongly(parts), *_wrong_tensors(parts)]
        if problems:
            what = f"the {place.count} files disagree; fetch them again, or split the model anew"
            raise CorruptCheckpointError(f"{what}:\n{listed(problems)}", path=path)
        joined = SplitCheckpoint(parts)
        opened.pop_all()
    return joined


def _check_whole(path: Path) -> None:
    """Refuse a file that says nothing of a set, but stands among its files by its name."""
    place = place_of(path.name)
    if place is None or place.count == 1:
        return
    others = [each for each in _beside(path) if each != path.name and _same_set(place, each)]
    if others:
        what = f"its name makes it one of {place.count} files, but it has no {SPLIT_COUNT} that says so"
        raise CorruptCheckpointError(
            f"{what}; if it is a whole model, give it another name; beside it:\n{listed(sorted(others))}",
            path=path,
        )


def _place(path: Path, said: Said) -> Place:
    """Return the place of a file by what it says, and by its name, which must agree."""
    problem = _problem(said, SPLIT_NO, needed=True)
    if problem:
        raise CorruptCheckpointError(problem, path=path)
    number, count = _value(said, SPLIT_NO) + 1, _value(said, SPLIT_COUNT)
    place = place_of(path.name)
    if place is None or (place.number, place.count) != (number, count):
        raise CorruptCheckpointError(
            f"by its metadata it is file {number} of {count} of a model, but its name does not end in "
            f"-{number:05}-of-{count:05}{SUFFIX}, by which the others are found; give it back that name, or "
            "name another file of the set",
            path=path,
        )
    return place


def _files(path: Path, place: Place) -> list[str]:
    """Return the names of all files of a set, which are there."""
    there = {name for name in _beside(path) if _same_set(place, name) and path.with_name(name).is_file()}
    names = [place.name(number) for number in range(1, place.count + 1)]
    missing = [name for name in names if name not in there]
    if missing:
        what = f"files of this model are missing ({len(missing)} of {place.count}); put them beside it"
        raise CorruptCheckpointError(f"{what}:\n{listed(missing)}", path=path)
    return names


def _beside(path: Path) -> list[str]:
    return os.listdir(path.parent)


def _same_set(place: Place, name: str) -> bool:
    other = place_of(name)
    return other is not None and (other.prefix, other.count) == (place.prefix, place.count)


def _said_wrongly(parts: Mapping[str, GgufCheckpoint]) -> Iterator[str]:
    """Yield what the files say of themselves that is not so, or not what the others say."""
    first = next(iter(parts))
    tensors = _value(parts[first].header.said, SPLIT_TENSORS)
    for index, (file, part) in enumerate(parts.items()):
        expected = {SPLIT_NO: index, SPLIT_COUNT: len(parts), SPLIT_TENSORS: tensors}
        for key, value in expected.items():
            # llama.cpp takes the number of tensors from the first file alone.
            needed = key != SPLIT_TENSORS or file == first
            problem = _problem(part.header.said, key, needed=needed)
            if problem:
                yield f"{file}: {problem}"
            elif key in part.header.said and _value(part.header.said, key) != value:
                found = _value(part.header.said, key)
                yield f"{file}: {key} is {found}, where {shown(value)} is expected"


def _wrong_tensors(parts: Mapping[str, GgufCheckpoint]) -> Iterator[str]:
    """Yield tensors that are in two files, and what is wrong with how many there are."""
    home: dict[str, str] = {}
    for file, part in parts.items():
        for name in part.specs:
            other = home.setdefault(name, file)
            if other != file:
                yield f"{file}: the tensor {shown(name)} is in {other} too"
    count = sum(len(part.specs) for part in parts.values())
    first = next(iter(parts))
    said = parts[first].header.said
    if _problem(said, SPLIT_TENSORS, needed=True) is None and _value(said, SPLIT_TENSORS) != count:
        yield f"{first}: {SPLIT_TENSORS} is {_value(said, SPLIT_TENSORS)}, but the files have {count}"
    limit = ckptio.current_limits().tensors
    if count > limit:
        yield f"{count} tensors are more than the limit of {limit}"


def _problem(said: Said, key: str, *, needed: bool = False) -> str | None:
    """Return what is wrong with a value as such: it is not there, or of a type that llama.cpp refuses."""
    if key not in said:
        return f"it has no {key}" if needed else None
    value, kind = said[key]
    wanted = SPLIT_KINDS[key]
    return None if kind == wanted else f"{key} is {shown(value)} ({kind}), where a {wanted} is expected"


def _value(said: Said, key: str) -> Any:
    return said[key][0] if key in said else None


def _metadata(parts: Sequence[GgufCheckpoint]) -> dict[str, Any]:
    """Return the metadata of the first file, less what is true of one of several, and the note on the set."""
    metadata = _without(parts[0].header.metadata)
    note = dict(note_of(metadata))
    types = _without(note.pop("types", {}))
    if types:
        note["types"] = types
    metadata[OWN] = {**note, "files": len(parts)}
    return with_notes(metadata, {name: each for part in parts for name, each in part.header.tensors.items()})


def _without(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in SPLIT_KINDS}


def _says(found: Any, wanted: Any) -> bool:
    """Return whether a value says all of another; a config may say more."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return all(key in found and found[key] == value for key, value in wanted.items())
    return type(found) is type(wanted) and bool(found == wanted)
