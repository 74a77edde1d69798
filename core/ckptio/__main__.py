"""``python -m ckptio`` is ``ckpt``."""

from __future__ import annotations

import sys

from ckptio.cli import main

if __name__ == "__main__":
    sys.exit(main())
