"""The command ``ckpt``: one module per command; this is the only package of ckptio that prints.

Nothing here imports numpy, a plugin or a library module before a command runs, so that ``--help``
and shell completion stay quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ckptio.cli.outcome import quiet_end, quiet_output, signals_raise, stopped_end

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ckpt`` with these arguments (``sys.argv[1:]`` when None) and return its exit status.

    0 is success, 1 an error that one message explains, 2 a wrong use of the command line, 130 an
    interrupt and 143 a SIGTERM; ``diff`` has the statuses of diff(1).
    """
    given = list(sys.argv[1:] if argv is None else argv)
    with signals_raise(), quiet_output():
        try:
            return _run(given)
        except BrokenPipeError:
            return quiet_end()
        except KeyboardInterrupt as stop:
            return stopped_end(stop)


def _run(given: list[str]) -> int:
    from ckptio.cli.app import command, gone

    line = gone(given)
    if line is not None:
        print(line, file=sys.stderr)
        return 2
    try:
        command()(given or ["--help"], prog_name="ckpt")
    except SystemExit as end:
        sys.stdout.flush()
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
