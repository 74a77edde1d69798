"""A format whose import brings a library that ckptio does not need."""

from __future__ import annotations

import safetensors

import ckptio
from testing.sound_formats import Sound


class HeavyFormat(Sound):
    name = "heavy_format"
    library = safetensors.__name__


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    return HeavyFormat()
