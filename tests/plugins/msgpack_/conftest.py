"""Files of the format from bytes and back, for the tests of this folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ckptio import Checkpoint, Output
from ckptio_msgpack.format import MAX_CHUNK_BYTES, MsgpackFormat

FORMAT = MsgpackFormat()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[bytes], Checkpoint]]:
    """Open the bytes of a file."""
    numbers = itertools.count()
    with ExitStack() as stack:

        def from_bytes(data: bytes) -> Checkpoint:
            path = tmp_path / f"read{next(numbers)}.msgpack"
            path.write_bytes(data)
            return stack.enter_context(FORMAT.open(path, {}))

        yield from_bytes


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., bytes]:
    """Write a checkpoint that the format can hold, and return the bytes of the file."""
    numbers = itertools.count()

    def to_bytes(checkpoint: Checkpoint, chunk_bytes: int = MAX_CHUNK_BYTES) -> bytes:
        options: dict[str, Any] = {"chunk_bytes": chunk_bytes}
        assert FORMAT.check(checkpoint, options) == []
        path = tmp_path / f"written{next(numbers)}.msgpack"
        with Output(path) as output:
            FORMAT.write(checkpoint, output, options)
            output.finish()
            output.publish()
        return path.read_bytes()

    return to_bytes
