"""Public names that are loaded when they are first used, so that importing a package costs nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["getter"]


def getter(package: str, names: Sequence[str], homes: Sequence[str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` (PEP 562) of a package: it finds the public ``names`` in ``homes``.

    Each home is a submodule with an ``__all__``; they are imported in this order until the name is found.
    """

    def find(name: str) -> Any:
        if name in names:
            for home in homes:
                module = importlib.import_module(f"{package}.{home}")
                if name in module.__all__:
                    value = getattr(module, name)
                    setattr(sys.modules[package], name, value)
                    return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
