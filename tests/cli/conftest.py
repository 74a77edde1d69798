from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ckptio
from ckptio.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def ckpt(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run the real ``main`` in this process."""

    def run(*argv: str | Path) -> Ended:
        status = main([str(each) for each in argv])
        captured = capsys.readouterr()
        return Ended(status, captured.out, captured.err)

    return run


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Save arrays to a file in ``tmp_path`` and return its path."""

    def save(name: str, tensors: dict[str, npt.NDArray[Any] | np.generic], **more: Any) -> Path:
        ckptio.save(tensors, tmp_path / name, **more)
        return tmp_path / name

    return save
