"""A format whose import prints."""

from __future__ import annotations

import sys

import ckptio
from testing.sound_formats import Sound

sys.stdout.write("hello\n")


class NoisyFormat(Sound):
    name = "noisy_format"


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    return NoisyFormat()
