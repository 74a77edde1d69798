"""torch's checkpoints (``torch.save``), as a format of ckptio; torch itself is not needed."""

from __future__ import annotations

import ckptio
from ckptio_torch.format import TorchFormat

__all__ = ["TorchFormat", "ckptio_format"]


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    return TorchFormat()
