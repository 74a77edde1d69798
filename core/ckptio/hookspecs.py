"""The one hook of ckptio, and the version of the plugin API that it stands for.

A plugin is a module named by an entry point of the group `GROUP`; the entry point's name is the
format's name::

    @ckptio.hookimpl
    def ckptio_format() -> ckptio.Format:
        return MyFormat()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from ckptio.format import Format

__all__ = ["API_VERSION", "GROUP", "GROUP_PREFIX", "ckptio_format", "hookimpl", "hookspec"]

API_VERSION = 1
GROUP_PREFIX = "ckptio.formats.v"
GROUP = f"{GROUP_PREFIX}{API_VERSION}"

hookspec = pluggy.HookspecMarker("ckptio")
hookimpl = pluggy.HookimplMarker("ckptio")


@hookspec
def ckptio_format() -> Format:  # type: ignore[empty-body]
    """Return the format that this plugin adds."""
