"""Moved to ckptio.format (the name ckptio.formats is that of a function); this shim goes soon."""

from ckptio.format import *  # noqa: F403
