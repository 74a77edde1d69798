"""flax's msgpack checkpoints (``flax.serialization``), as a format of ckptio."""

from __future__ import annotations

import ckptio

__all__ = ["ckptio_format"]


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    """Return the format ``msgpack``."""
    from ckptio_msgpack.format import MsgpackFormat

    return MsgpackFormat()
