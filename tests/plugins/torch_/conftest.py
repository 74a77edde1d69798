"""Files of torch from bytes, for the tests of this folder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckptio import Checkpoint
from ckptio_torch.format import TorchFormat


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Checkpoint]]:
    """Open the bytes of a file."""
    numbers = itertools.count()
    with ExitStack() as stack:

        def from_bytes(data: bytes, *, skip_unknown: bool = False) -> Checkpoint:
            path = tmp_path / f"read{next(numbers)}.pt"
            path.write_bytes(data)
            return stack.enter_context(TorchFormat().open(path, {"skip_unknown": skip_unknown}))

        yield from_bytes
