"""Every cell of the matrix whose golden file is at hand; ``tests/matrix.py FOLDER`` does all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden import GOLDEN
from matrix import matrix, try_cell

CELLS = [
    (relative, wanted)
    for relative, entry in matrix().items()
    for wanted in entry["targets"]
    if (GOLDEN / relative).exists()
]


def test_each_kind_of_outcome_is_at_hand() -> None:
    outcomes = {matrix()[relative]["targets"][wanted]["outcome"] for relative, wanted in CELLS}
    assert outcomes == {"exact", "same bytes", "refused", "not a model"}
    assert len(CELLS) > 60


@pytest.mark.parametrize(("relative", "wanted"), CELLS, ids=[f"{r}-{w}" for r, w in CELLS])
def test_cell(relative: str, wanted: str, tmp_path: Path) -> None:
    assert try_cell(GOLDEN, relative, wanted, tmp_path)
