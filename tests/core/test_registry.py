"""The registry: lazy, isolated, versioned plugins, and one clear message for each that fails."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

import ckptio
from ckptio import (
    Capabilities,
    Dependency,
    DType,
    Format,
    PluginConflictError,
    PluginLoadError,
    PluginVersionError,
    UnknownFormatError,
    UnsupportedError,
)
from ckptio.registry import Registry, missing_dependency


class _Dist(Distribution):
    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        return (
            f"Metadata-Version: 2.1\nName: {self._name}\nVersion: 1.2\n" if filename == "METADATA" else None
        )

    def locate_file(self, path: Any) -> Any:
        return Path(path)


def entry(name: str, value: str, *, group: str = "ckptio.formats.v1", dist: str = "stranger") -> EntryPoint:
    point = EntryPoint(name, value, group)
    vars(point)["dist"] = _Dist(dist)
    return point


class Toy(Format):
    name = "toy"
    summary = "A toy."
    capabilities = Capabilities(dtypes=frozenset(DType))

    def open(self, path: Path, options: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a module importable whose hook does what the test says."""

    def make(name: str, hook: Any, marked: bool = True) -> str:
        fake = types.ModuleType(name)
        vars(fake)["ckptio_format"] = ckptio.hookimpl(hook) if marked else hook
        monkeypatch.setitem(sys.modules, name, fake)
        return name

    return make


def test_a_strangers_format_is_loaded_by_the_same_entry_point(module: Any) -> None:
    registry = Registry([entry("toy", module("toy_plugin", lambda: Toy()))])
    assert isinstance(registry.load("toy"), Toy)
    assert registry.load("toy") is registry.load("toy")
    assert registry.infos()[0].distribution == "stranger"
    assert registry.infos()[0].version == "1.2"
    assert registry.infos()[0].api == "v1"


def test_listing_imports_no_plugin() -> None:
    code = (
        "import sys, ckptio; names = [f.name for f in ckptio.formats()]; "
        "print(names, [m for m in sys.modules if m.startswith('ckptio_')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    installed = sorted(point.name for point in entry_points(group="ckptio.formats.v1"))
    assert done.stdout.strip() == f"{installed} []"


def test_using_one_format_imports_that_plugin_alone() -> None:
    code = (
        "import sys; from ckptio.registry import registry; registry().load('statedict'); "
        "print(sorted(m for m in sys.modules if m.startswith('ckptio_') and '.' not in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ckptio_statedict']"


def test_an_unknown_name_lists_the_installed_ones_and_the_nearest(module: Any) -> None:
    registry = Registry([entry("toy", module("toy_plugin", lambda: Toy()))])
    with pytest.raises(
        UnknownFormatError, match=r"no format 'toi' is installed; installed: toy; did you mean 'toy'\?"
    ):
        registry.load("toi")


@pytest.mark.parametrize(("name", "words"), [("bin", "say 'llmc' .* or 'statedict'"), ("pth", "'statedict'")])
def test_the_historical_values_are_answered_with_what_replaced_them(name: str, words: str) -> None:
    with pytest.raises(UnknownFormatError, match=f"'{name}' is gone: .*{words}"):
        Registry().load(name)


def _raise(error: BaseException) -> Any:
    raise error


BROKEN: dict[str, tuple[Any, str]] = {
    "raises": (lambda: _raise(RuntimeError("no luck")), "its hook failed: RuntimeError: no luck"),
    "exits": (lambda: _raise(SystemExit(3)), "its hook failed: SystemExit: 3"),
    "none": (lambda: None, "it returned nothing"),
    "nonsense": (lambda: 7, "must return one Format; it returned int"),
    "class": (lambda: Toy, "it returned ABCMeta"),
    "misnamed": (lambda: Toy(), "calls itself 'toy', its entry point 'misnamed'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_plugin_that_fails_harms_only_who_asks_for_it(name: str, module: Any) -> None:
    hook, words = BROKEN[name]
    registry = Registry(
        [entry(name, module("bad_plugin", hook)), entry("toy", module("good", lambda: Toy()))]
    )
    with pytest.raises(PluginLoadError, match=words) as caught:
        registry.load(name)
    assert "stranger 1.2" in str(caught.value)
    assert isinstance(registry.load("toy"), Toy)
    with pytest.raises(PluginLoadError, match=words):
        registry.load(name)


def test_a_plugin_that_cannot_be_imported_is_named(module: Any) -> None:
    registry = Registry([entry("toy", module("good", lambda: Toy())), entry("gone", "no_such_module_at_all")])
    with pytest.raises(PluginLoadError, match="gone .*cannot be imported: ModuleNotFoundError"):
        registry.load("gone")
    assert isinstance(registry.load("toy"), Toy)


def test_a_hook_with_an_argument_is_no_valid_plugin(module: Any) -> None:
    registry = Registry([entry("toy", module("bad", lambda path: Toy()))])
    with pytest.raises(PluginLoadError, match="is no valid plugin"):
        registry.load("toy")


def test_a_hook_that_is_not_marked_returns_nothing(module: Any) -> None:
    registry = Registry([entry("toy", module("bad", lambda: Toy(), marked=False))])
    with pytest.raises(PluginLoadError, match="it returned nothing"):
        registry.load("toy")


def test_what_a_plugin_prints_goes_to_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "noisy_plugin.py").write_text("print('hello')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginLoadError):
        Registry([entry("noisy", "noisy_plugin")]).load("noisy")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "hello\n")


def test_two_distributions_with_one_name_fail_only_when_it_is_asked_for(module: Any) -> None:
    one = entry("dup", module("one", lambda: Toy()), dist="first")
    two = entry("dup", module("two", lambda: Toy()), dist="second")
    registry = Registry([one, two, entry("toy", module("good", lambda: Toy()))])
    assert isinstance(registry.load("toy"), Toy)
    assert registry.names() == ["toy"]
    with pytest.raises(PluginConflictError, match=r"first 1\.2.*second 1\.2"):
        registry.load("dup")


def test_a_plugin_for_another_api_is_named_without_being_imported() -> None:
    registry = Registry([entry("next", "no_such_module", group="ckptio.formats.v2")])
    assert registry.names() == []
    problem = registry.infos()[0].problem
    assert problem == "made for plugin API v2; this ckptio has v1"
    with pytest.raises(PluginVersionError, match="stranger 1.2.*made for plugin API v2"):
        registry.load("next")


def test_a_plugin_for_both_apis_works(module: Any) -> None:
    points = [entry("toy", module("good", lambda: Toy())), entry("toy", "nothing", group="ckptio.formats.v2")]
    assert isinstance(Registry(points).load("toy"), Toy)


def test_a_format_is_switched_off_by_the_variable(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTIO_DISABLE", "toy, other")
    registry = Registry([entry("toy", module("good", lambda: Toy()))])
    assert registry.names() == []
    with pytest.raises(UnknownFormatError, match="switched off by CKPTIO_DISABLE"):
        registry.load("toy")


def test_a_missing_optional_dependency_is_named_with_its_remedy(module: Any) -> None:
    class Needy(Toy):
        name = "needy"
        capabilities = Capabilities(
            dtypes=frozenset(DType), dependency=Dependency("no_such_library", "stranger[extra]")
        )

    registry = Registry([entry("needy", module("needy_plugin", lambda: Needy()))])
    needs = r"needs no_such_library: pip install 'stranger\[extra\]'"
    assert missing_dependency(registry.load("needy")) is not None
    with pytest.raises(UnsupportedError, match=needs):
        registry.require("needy")


def test_the_shipped_plugins_are_entry_points_like_any_other() -> None:
    found = {point.name: point.value for point in entry_points(group="ckptio.formats.v1")}
    assert found.items() >= {
        ("llmc", "ckptio_llmc"),
        ("msgpack", "ckptio_msgpack"),
        ("npz", "ckptio_npz"),
        ("safetensors", "ckptio_safetensors"),
        ("statedict", "ckptio_statedict"),
        ("torch", "ckptio_torch"),
    }
