"""Where the golden files are: files that the real programs wrote, each with its truth beside it.

A part of them travels with the repository; ``CKPTIO_GOLDEN`` names a folder that has them all.
"""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(__file__).parent / "data"
GOLDEN = Path(os.environ.get("CKPTIO_GOLDEN", DATA / "golden")).absolute()


def golden(relative: str) -> Path:
    """Return the path of one golden file, which must be there."""
    path = GOLDEN / relative
    assert path.is_file(), f"no golden file {relative}"
    return path


def all_golden(pattern: str) -> list[Path]:
    """Return the golden files that match ``pattern``, sorted; there must be one at least."""
    found = sorted(GOLDEN.glob(pattern))
    assert found, f"no golden file matches {pattern}"
    return found


def golden_id(path: Path) -> str:
    """Return a short test id for a golden file."""
    return path.relative_to(GOLDEN).as_posix()
