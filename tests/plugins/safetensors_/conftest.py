"""Files made by hand, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from independent_safetensors import pack


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of a header (JSON value, or bytes as they are) and its data."""

    def written(header: Any, data: bytes = b"") -> Path:
        path = tmp_path / "made.safetensors"
        path.write_bytes(pack(header, data))
        return path

    return written
