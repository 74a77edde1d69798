"""Which formats there are, and which one a path needs.

Listing imports nothing; using one format imports that one plugin. A plugin that fails harms only
whoever asks for it.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import pluggy

from ckptio import hookspecs
from ckptio.errors import (
    PluginConflictError,
    PluginError,
    PluginLoadError,
    PluginVersionError,
    UnknownFormatError,
    UnsupportedError,
)
from ckptio.format import Format

__all__ = ["FormatInfo", "Registry", "formats", "registry"]

DISABLE_VARIABLE = "CKPTIO_DISABLE"
_HISTORICAL = {
    "bin": "'bin' is gone: say 'llmc' for llm.c's model files or 'statedict' for InfiniTrain's native ones",
    "pth": "'pth' is gone: those files are InfiniTrain's native ones, 'statedict'",
}


@dataclass(frozen=True, slots=True)
class FormatInfo:
    """What is known of an installed format without importing it.

    ``problem`` says why it cannot be used, as far as that is known: switched off, claimed twice, made
    for another version of the plugin API.
    """

    name: str
    module: str
    distribution: str
    version: str
    api: str
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.module}, from {self.distribution} {self.version})"


class Registry:
    """The installed formats, by name; ``found`` and ``disabled`` stand in for the real ones in tests."""

    def __init__(
        self, found: Iterable[EntryPoint] | None = None, *, disabled: Iterable[str] | None = None
    ) -> None:
        if found is None:
            found = _installed()
        if disabled is None:
            disabled = os.environ.get(DISABLE_VARIABLE, "").split(",")
        self._disabled = {name.strip() for name in disabled} - {""}
        self._entries: dict[str, list[EntryPoint]] = {}
        for entry in found:
            if entry.group.startswith(hookspecs.GROUP_PREFIX):
                self._entries.setdefault(entry.name, []).append(entry)
        self._loaded: dict[str, Format] = {}
        self._failed: dict[str, PluginError] = {}
        self._plugins = pluggy.PluginManager("ckptio")
        self._plugins.add_hookspecs(hookspecs)

    def infos(self) -> list[FormatInfo]:
        """Return every installed format, sorted by name, without importing any."""
        return [
            _info(entry, self._problem(name))
            for name in sorted(self._entries)
            for entry in self._entries[name]
        ]

    def names(self) -> list[str]:
        """Return the names of the formats that nothing speaks against, sorted."""
        return [name for name in sorted(self._entries) if self._problem(name) is None]

    def load(self, name: str) -> Format:
        """Return the format called ``name``; its plugin is imported at the first call.

        Raises `UnknownFormatError` when there is none, a `PluginError` when its plugin cannot be
        used, and `UnsupportedError` when its optional dependency is not installed.
        """
        if name in self._loaded:
            return self._loaded[name]
        if name in self._failed:
            raise self._failed[name]
        problem = self._problem(name)
        if problem is not None:
            raise self._problem_error(name, problem)
        try:
            found = self._load(self._usable(name)[0])
        except PluginError as error:
            self._failed[name] = error
            raise
        self._loaded[name] = found
        return found

    def require(self, name: str) -> Format:
        """Return the format ``name`` ready for work: its optional dependency is there too."""
        found = self.load(name)
        missing = missing_dependency(found)
        if missing is not None:
            raise UnsupportedError(f"the format {name!r} {missing}")
        return found

    def _usable(self, name: str) -> list[EntryPoint]:
        return [entry for entry in self._entries.get(name, ()) if entry.group == hookspecs.GROUP]

    def _problem(self, name: str) -> str | None:
        usable = self._usable(name)
        if name in self._disabled:
            return f"switched off by {DISABLE_VARIABLE}"
        if not usable:
            apis = (
                ", ".join(sorted(_api(entry) for entry in self._entries[name]))
                if self._entries.get(name)
                else ""
            )
            return (
                f"made for plugin API {apis}; this ckptio has v{hookspecs.API_VERSION}" if apis else "unknown"
            )
        if len(usable) > 1:
            return "claimed by " + " and by ".join(sorted(str(_info(entry, None)) for entry in usable))
        return None

    def _problem_error(self, name: str, problem: str) -> Exception:
        if name not in self._entries:
            known = ", ".join(self.names()) or "none"
            near = difflib.get_close_matches(name, self.names(), n=1)
            hint = _HISTORICAL.get(name) or (f"did you mean {near[0]!r}?" if near else "")
            return UnknownFormatError(
                f"no format {name!r} is installed; installed: {known}" + (f"; {hint}" if hint else "")
            )
        if name in self._disabled:
            return UnknownFormatError(f"the format {name!r} is {problem}; take it out of there to use it")
        who = str(_info(self._entries[name][0], None))
        if not self._usable(name):
            return PluginVersionError(f"{who} is {problem}; install a version of it for this ckptio")
        return PluginConflictError(f"the format name {name!r} is {problem}; uninstall one of them")

    def _load(self, entry: EntryPoint) -> Format:
        try:
            # What a plugin prints while it is imported must not mix with the output of `--json`.
            with contextlib.redirect_stdout(sys.stderr):
                plugin = entry.load()
        except (Exception, SystemExit) as error:
            raise _fault(entry, f"cannot be imported: {type(error).__name__}: {error}") from error
        try:
            self._plugins.register(plugin, name=entry.name)
        except (Exception, SystemExit) as error:
            if self._plugins.has_plugin(entry.name):
                self._plugins.unregister(name=entry.name)
            raise _fault(entry, f"is no valid plugin: {error}") from error
        try:
            return self._ask(plugin, entry)
        except BaseException:
            self._plugins.unregister(plugin)
            raise

    def _ask(self, plugin: object, entry: EntryPoint) -> Format:
        others = [other for other in self._plugins.get_plugins() if other is not plugin]
        try:
            with contextlib.redirect_stdout(sys.stderr):
                answers = self._plugins.subset_hook_caller("ckptio_format", others)()
        except (Exception, SystemExit) as error:
            raise _fault(entry, f"is at fault: its hook failed: {type(error).__name__}: {error}") from error
        if len(answers) != 1 or not isinstance(answers[0], Format):
            what = "nothing" if not answers else ", ".join(type(answer).__name__ for answer in answers)
            raise _fault(
                entry, f"is at fault: its hook ckptio_format() must return one Format; it returned {what}"
            )
        if answers[0].name != entry.name:
            raise _fault(
                entry,
                f"is at fault: the format calls itself {answers[0].name!r}, its entry point {entry.name!r}",
            )
        return answers[0]


def _fault(entry: EntryPoint, what: str) -> PluginLoadError:
    """Return the error of a plugin that cannot be used, with what can be done about it."""
    info = _info(entry, None)
    remedy = f"update or uninstall {info.distribution}, or set {DISABLE_VARIABLE}={entry.name}"
    return PluginLoadError(f"{info} {what}; {remedy}")


def _installed() -> list[EntryPoint]:
    everything = entry_points()
    groups = [group for group in everything.groups if group.startswith(hookspecs.GROUP_PREFIX)]
    return [entry for group in groups for entry in everything.select(group=group)]


def missing_dependency(found: Format) -> str | None:
    """Return what to install before ``found`` can work, or None when all is there."""
    needed = found.capabilities.dependency
    if needed is None or importlib.util.find_spec(needed.module) is not None:
        return None
    return f"needs {needed.module}: pip install '{needed.install}'"


def _api(entry: EntryPoint) -> str:
    return "v" + entry.group.removeprefix(hookspecs.GROUP_PREFIX)


def _info(entry: EntryPoint, problem: str | None) -> FormatInfo:
    dist = entry.dist
    name, version = (dist.name, dist.version) if dist is not None else ("an unknown distribution", "?")
    return FormatInfo(entry.name, entry.value, name, version, _api(entry), problem)


@functools.cache
def registry() -> Registry:
    """Return the registry of what is installed; made at the first call."""
    return Registry()


def formats() -> list[FormatInfo]:
    """Return the installed formats, sorted by name; no plugin is imported."""
    return registry().infos()
