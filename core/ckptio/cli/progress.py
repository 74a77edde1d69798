"""A bar with bytes and rate on standard error, for work that lasts, and only on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["ProgressBar"]

_PATIENCE = 1.0
"""Seconds of work before there is a bar."""


class ProgressBar:
    """Called with the bytes done and the bytes in all, as a ``ckptio.writing.Progress`` is."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._wanted = not quiet and sys.stderr.isatty()
        self._began = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        if not self._wanted:
            return
        if self._bar is None or self._task is None:
            if time.monotonic() - self._began < _PATIENCE:
                return
            self._bar = _new_bar()
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _new_bar() -> Progress:
    # Imported late: rich costs more than most commands take.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
