from __future__ import annotations

import pytest

import ckptio
from ckptio.registry import registry


def any_names() -> list[str]:
    """Return the installed formats that write tensors of any names."""
    formats = [registry().load(info.name) for info in ckptio.formats() if info.problem is None]
    return [each.name for each in formats if each.capabilities.writes and each.capabilities.layout is None]


@pytest.fixture(params=any_names())
def target(request: pytest.FixtureRequest) -> str:
    """Each format that holds tensors of any names."""
    return str(request.param)
