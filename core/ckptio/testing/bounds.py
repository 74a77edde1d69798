"""Bounds on the work of a plugin: memory as Python counts it, and time of the processor."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import tracemalloc
from collections.abc import Iterator
from types import FrameType

import pytest

__all__ = ["memory_bound", "time_bound", "tracing"]


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Have memory counted inside the ``with``, where it is not already."""
    if tracemalloc.is_tracing():
        yield
        return
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@contextlib.contextmanager
def memory_bound(limit: int, what: str) -> Iterator[None]:
    """Fail when the ``with`` allocates more than ``limit`` bytes at once."""
    with tracing():
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        yield
        peak = tracemalloc.get_traced_memory()[1] - before
    if peak > limit:
        pytest.fail(f"{what}: {peak} bytes of memory, no more than {limit} expected")


@contextlib.contextmanager
def time_bound(seconds: float, what: str) -> Iterator[None]:
    """Fail when the ``with`` takes more processor time; an endless loop in Python is broken off.

    It is processor time, because a busy machine is no fault of the format.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        # This is no Exception: code that catches all of those does not swallow it.
        pytest.fail(f"{what}: more than {seconds:g} s of processor time")

    can_interrupt = threading.current_thread() is threading.main_thread()
    began = time.process_time()
    if can_interrupt:
        handler = signal.signal(signal.SIGVTALRM, stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        if can_interrupt:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, handler)
    if time.process_time() - began > seconds:
        pytest.fail(f"{what}: more than {seconds:g} s of processor time")
