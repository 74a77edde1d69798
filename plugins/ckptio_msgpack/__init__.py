"""flax's msgpack checkpoints (``flax.serialization``), as a format of ckptio."""

from __future__ import annotations

import ckptio
from ckptio_msgpack.format import MsgpackFormat

__all__ = ["MsgpackFormat", "ckptio_format"]


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    return MsgpackFormat()
