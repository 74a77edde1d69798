"""torch's checkpoints (``torch.save``), as a format of ckptio; torch itself is not needed."""

from __future__ import annotations

import ckptio

__all__ = ["ckptio_format"]


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    """Return the format ``torch``."""
    from ckptio_torch.format import TorchFormat

    return TorchFormat()
