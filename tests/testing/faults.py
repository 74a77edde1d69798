"""The list of faulty formats, and the plugin that brings all of them under their entry points.

An entry point names an attribute of this module, which is made when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import ckptio
from testing.sound_formats import Modest, ReadOnly, Sound

__all__ = ["breaks", "everything"]

FAULTS: dict[str, frozenset[str]] = {}
"""The promises (names of tests of the kit) that each faulty format breaks."""
MODULES: dict[str, frozenset[str] | None] = {
    name: frozenset({"test_importing_it_is_silent_and_light"}) for name in ("noisy_format", "heavy_format")
}
"""The same for formats in modules of their own, since it is their import that is at fault."""
FORMATS: dict[str, type[ckptio.Format]] = {each.name: each for each in (Sound, Modest, ReadOnly)}


def breaks(*promises: str) -> Callable[[type[Sound]], type[Sound]]:
    """Register a faulty format, under its class's name in small letters, with all that it breaks."""

    def register(faulty: type[Sound]) -> type[Sound]:
        name = "".join(f"_{each.lower()}" if each.isupper() else each for each in faulty.__name__)[1:]
        faulty.name = name
        FAULTS[name] = frozenset(f"test_{promise}" for promise in promises)
        FORMATS[name] = faulty
        return faulty

    return register


def everything() -> dict[str, frozenset[str] | None]:
    """Return all formats by name, with the promises that each breaks; None for a sound one."""
    for module in ("faulty_values", "faulty_keeping", "faulty_conduct"):
        importlib.import_module(f"testing.{module}")
    return {name: FAULTS.get(name) for name in FORMATS} | MODULES


class _Plugin:
    def __init__(self, name: str) -> None:
        self.name = name

    @ckptio.hookimpl
    def ckptio_format(self) -> ckptio.Format:
        return FORMATS[self.name]()


def __getattr__(name: str) -> _Plugin:
    if name.startswith("_") or name not in everything():
        raise AttributeError(name)
    return _Plugin(name)
