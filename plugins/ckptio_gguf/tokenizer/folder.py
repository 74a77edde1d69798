"""The files of a tokenizer in a folder, read within bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckptio import CorruptCheckpointError
from ckptio.files import read_whole
from ckptio.jsontext import nesting_problem, parse_object

__all__ = ["Folder"]


class Folder:
    """A folder of transformers; a file that is not there is None. Each JSON file is parsed once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parsed: dict[str, dict[str, Any]] = {}

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def data(self, name: str) -> bytes | None:
        return read_whole(self.path / name, "tokenizer") if self.has(name) else None

    def text(self, name: str) -> str | None:
        data = self.data(name)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError as problem:
            raise self.error(name, f"is not UTF-8: {problem.reason}", problem.start) from None

    def json(self, name: str) -> dict[str, Any] | None:
        """Return the object that a JSON file is."""
        if name in self._parsed:
            return self._parsed[name]
        data = self.data(name)
        if data is None:
            return None
        found = parse_object(data, "the file", path=self.path / name)
        if problem := nesting_problem(found):
            raise self.error(name, f"is {problem}")
        self._parsed[name] = found
        return found

    def error(self, name: str, what: str, offset: int | None = None) -> CorruptCheckpointError:
        """Return the error that something is wrong with a file of the folder."""
        return CorruptCheckpointError(what, path=self.path / name, offset=offset)
