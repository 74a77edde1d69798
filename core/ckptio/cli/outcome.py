"""How a command ends: exceptions, signals and warnings become messages and exit statuses."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import ParamSpec

import typer

from ckptio.cli.text import escape_lines

__all__ = ["Stopped", "quiet_end", "quiet_output", "reported", "signals_raise", "stopped_end"]

P = ParamSpec("P")

_STOPPING = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class Stopped(KeyboardInterrupt):
    """A signal asked the command to end; whatever treats Ctrl-C treats this too, so `with` cleans up."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(_STOPPING[signal.Signals(number)])


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Make Ctrl-C, SIGTERM and SIGHUP raise `Stopped` inside the ``with``; ignored ones stay ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    standard = (signal.SIG_DFL, signal.default_int_handler)
    changed = {}
    try:
        for number in _STOPPING:
            if signal.getsignal(number) in standard:
                changed[number] = signal.signal(number, stop)
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def quiet_output() -> Iterator[None]:
    """Let no character that the output's encoding lacks become an error."""
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        # A closed pipe would make reconfiguring fail: it flushes first.
        with contextlib.suppress(OSError, ValueError):
            stream.reconfigure(errors=before)


def quiet_end() -> int:
    """End without a word when the reader of our output is gone, as a program killed by SIGPIPE does."""
    # Python flushes standard output once more at exit, and would complain.
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    return 128 + signal.SIGPIPE


def stopped_end(stop: KeyboardInterrupt) -> int:
    """End with the word of the signal, and the status that a shell gives a program killed by it."""
    number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
    _say("error", _STOPPING[signal.Signals(number)])
    return 128 + number


def reported(command: Callable[P, int | None], *, trouble: int = 1) -> Callable[P, None]:
    """Wrap a command: its errors are explained on standard error, and ``trouble`` is their status.

    What is no error of ours or the system's is a bug, and shows its traceback.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with _warnings_as_lines():
            raise typer.Exit(_status(functools.partial(command, *args, **kwargs), trouble))

    return run


def _status(command: Callable[[], int | None], trouble: int) -> int:
    from ckptio.errors import CkptError

    try:
        status = command() or 0
        sys.stdout.flush()
    except BrokenPipeError:
        return quiet_end()
    except KeyboardInterrupt as stop:
        return stopped_end(stop)
    # Under `python -W error`, a warning of ours is an error, and no bug.
    except (CkptError, OSError, UserWarning) as error:
        _say("error", _message(error))
        return trouble
    except (typer.BadParameter, typer.Exit, typer.Abort):
        raise
    except Exception:
        traceback.print_exc()
        return trouble
    return status


def _message(error: Exception) -> str:
    from ckptio.errors import CkptError

    if isinstance(error, OSError) and not isinstance(error, CkptError) and error.strerror:
        names = [
            os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)
        ]
        text = ": ".join([" -> ".join(names), error.strerror] if names else [error.strerror])
    else:
        text = str(error) or type(error).__name__
    return "\n".join([text, *getattr(error, "__notes__", ())])


def _say(kind: str, message: str) -> None:
    print(f"{kind}: {escape_lines(message)}", file=sys.stderr)


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    def show(message: Warning | str, *rest: object, **named: object) -> None:
        _say("warning", " ".join(str(message).split("\n")))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
