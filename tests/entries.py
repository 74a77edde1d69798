"""The training entries of ``examples``, run in this process."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LINE = re.compile(r"step +(\d+)/(\d+) \| train loss (\d+\.\d{6}) \| lr (\d\.\d\de[-+]\d\d) \| \(.+\)")


class Run(NamedTuple):
    """What an entry did: its exit status, the loss of each step as it is printed, and its notes."""

    status: int
    losses: dict[int, float]
    said: str


def module(name: str) -> Any:
    """Return a module of the folder ``examples``, as its entries import it."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return importlib.import_module(name)


def train(model: str, *flags: object) -> Run:
    """Run an entry, every line of whose output must be a line of the log."""
    out, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said), _settings_kept():
        status = module(f"train_{model}").main(["--device", "cpu", *map(str, flags)])
    losses = {}
    for line in out.getvalue().splitlines():
        found = LINE.fullmatch(line)
        assert found is not None, line
        losses[int(found[1])] = float(found[3])
    return Run(status, losses, said.getvalue())


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
