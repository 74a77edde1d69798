"""formats: the list, one format, and what is wrong with a plugin."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Any

import pytest

import ckptio.registry
from ckptio import Capabilities, Dependency, DType, Format, Option
from ckptio.registry import Registry

SHIPPED = sorted(entry.name for entry in entry_points(group="ckptio.formats.v1"))
ALWAYS_READY = {"llmc", "msgpack", "npz", "statedict", "torch"}


class Toy(Format):
    name = "toy"
    summary = "A toy."
    suffixes = (".toy",)
    capabilities = Capabilities(
        dtypes=frozenset({DType.F32, DType.BOOL}),
        metadata=True,
        zero_dim=False,
        max_tensor_bytes=1000,
        writes=False,
        dependency=Dependency("no_such_module_of_a_toy", "ckptio[toy]"),
    )
    read_options = (
        Option("depth", int, "how deep", 3),
        Option("way", str, "which way", "up", ("up", "down")),
    )

    def open(self, path: Path, options: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the registry one of four plugins: a toy, one that fails, one of another API, one switched off."""

    def ckptio_format() -> Format:
        return Toy()

    module = types.ModuleType("a_toy_plugin")
    vars(module)["ckptio_format"] = ckptio.hookimpl(ckptio_format)
    monkeypatch.setitem(sys.modules, "a_toy_plugin", module)
    group = "ckptio.formats.v1"
    found = [
        EntryPoint("toy", "a_toy_plugin", group),
        EntryPoint("broken", "no_such_module_at_all", group),
        EntryPoint("future", "never_imported", "ckptio.formats.v9"),
        EntryPoint("off", "never_imported", group),
    ]
    registry = Registry(found, disabled=["off"])
    monkeypatch.setattr(ckptio.registry, "registry", lambda: registry)


def test_the_list(ckpt: Callable[..., Any]) -> None:
    ended = ckpt("formats")
    assert (ended.status, ended.err) == (0, "")
    rows = [line.split() for line in ended.out.splitlines()[1:]]
    assert rows == [[name, "ckptio", version("ckptio"), "v1", "installed"] for name in SHIPPED]


def test_check_loads_every_format(ckpt: Callable[..., Any]) -> None:
    states = {each["name"]: each["problem"] for each in json.loads(ckpt("formats", "--check", "--json").out)}
    assert list(states) == SHIPPED
    assert all(states[name] is None for name in ALWAYS_READY)
    ready = [
        line.split()[0] for line in ckpt("formats", "--check").out.splitlines() if line.endswith(" ready")
    ]
    assert set(ready) == {name for name, problem in states.items() if problem is None}


@pytest.mark.parametrize("name", sorted(ALWAYS_READY))
def test_one_format_in_json(ckpt: Callable[..., Any], name: str) -> None:
    about = json.loads(ckpt("formats", name, "--json").out)
    found = ckptio.registry.registry().load(name)
    assert (about["name"], about["summary"], about["problem"]) == (name, found.summary, None)
    assert set(about["capabilities"]["dtypes"]) == {dtype.value for dtype in found.capabilities.dtypes}
    assert [each["name"] for each in about["write_options"]] == [each.name for each in found.write_options]


@pytest.mark.usefixtures("strangers")
def test_the_list_tells_problems_without_importing(ckpt: Callable[..., Any]) -> None:
    ended = ckpt("formats", "--json")
    assert ended.status == 0
    problems = {each["name"]: each["problem"] for each in json.loads(ended.out)}
    assert problems["toy"] is None
    assert problems["broken"] is None
    assert problems["future"] == "made for plugin API v9; this ckptio has v1"
    assert problems["off"] == "switched off by CKPTIO_DISABLE"


@pytest.mark.usefixtures("strangers")
def test_check_names_the_remedy_and_ends_with_1(ckpt: Callable[..., Any]) -> None:
    ended = ckpt("formats", "--check")
    assert ended.status == 1
    states = {line.split()[0]: line for line in ended.out.splitlines()[1:]}
    assert "pip install 'ckptio[toy]'" in states["toy"]
    assert "No module named 'no_such_module_at_all'" in states["broken"]
    assert "switched off" in states["off"]


@pytest.mark.usefixtures("strangers")
def test_one_format_shows_all_that_it_declares(ckpt: Callable[..., Any]) -> None:
    ended = ckpt("formats", "toy")
    assert ended.status == 1
    lines = {line[:13].strip(): line[13:].strip() for line in ended.out.splitlines()}
    assert lines["toy"] == "A toy."
    assert lines["state"] == "needs no_such_module_of_a_toy: pip install 'ckptio[toy]'"
    assert lines["suffixes"] == ".toy"
    assert lines["access"] == "reads only"
    assert lines["dtypes"] == "bool, f32"
    assert lines["in the file"] == "tensors, metadata"
    assert lines["in a sidecar"] == "ties, leaves"
    assert lines["refused"] == "0-d tensors, tensors above 1,000 bytes"
    assert "-O depth=…  how deep; default: 3" in ended.out
    assert "-O way=…  which way (one of up, down); default: up" in ended.out


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize(
    ("name", "what"), [("broken", "cannot be imported"), ("future", "v9"), ("tou", "'toy'")]
)
def test_a_format_that_cannot_be_shown_is_an_error(ckpt: Callable[..., Any], name: str, what: str) -> None:
    ended = ckpt("formats", name)
    assert (ended.status, ended.out) == (1, "")
    assert what in ended.err
