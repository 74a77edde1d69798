"""Crashes at every call that changes or forces a name: what an output leaves behind then."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ckptio import publishing


class CrashError(Exception):
    pass


class Watch:
    """Record every call that changes or forces a name, and raise instead of, or after, the nth."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self.crash: tuple[int, str] | None = None
        real_fsync, real_link, real_rename, real_exchange = os.fsync, os.link, os.rename, publishing.exchange

        def fsync(fd: int) -> None:
            self._around("fsync", os.readlink(f"/proc/self/fd/{fd}"), lambda: real_fsync(fd))

        def link(source: Any, target: Any, **options: Any) -> None:
            self._around("link", str(target), lambda: real_link(source, target, **options))

        def rename(source: Any, target: Any) -> None:
            self._around("rename", str(target), lambda: real_rename(source, target))

        def exchange(source: Path, target: Path) -> bool:
            return bool(self._around("exchange", str(target), lambda: real_exchange(source, target)))

        for name, watched in (("fsync", fsync), ("link", link), ("rename", rename)):
            monkeypatch.setattr(os, name, watched)
        monkeypatch.setattr(publishing, "exchange", exchange)

    def _around(self, verb: str, path: str, run: Any) -> Any:
        number = len(self.calls)
        last = os.path.basename(path)
        self.calls.append((verb, "staging" if last.startswith(".ckptio-") else last))
        if self.crash == (number, "before"):
            raise CrashError
        done = run()
        if self.crash == (number, "after"):
            raise CrashError
        return done
