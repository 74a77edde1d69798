"""Fabricated distributions on the path, each wrong in its own way: every other format keeps working."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ckptio
from ckptio.cli import main
from ckptio.registry import registry
from golden import golden
from independent import read_ckpt

SOURCE = "infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/optimizer.ckpt"
FORMAT = """
import pathlib
import ckptio

class Made(ckptio.Format):
    name = "{name}"
    summary = "a format"
    capabilities = ckptio.Capabilities(dtypes=frozenset({{ckptio.DType.F32}}), {more})

    def open(self, path, options):
        raise NotImplementedError

    def match(self, probe):
        {match}

@ckptio.hookimpl
def ckptio_format():
    return {returned}
"""


def source(name: str, *, returned: str = "Made()", more: str = "", match: str = "return None") -> str:
    return FORMAT.format(name=name, returned=returned, more=more, match=match)


UPDATE = "update or uninstall {name}-dist, or set CKPTIO_DISABLE={name}"
PLUGINS: dict[str, tuple[str, str, str]] = {
    # name: the module, the state, the remedy
    "raises": ("raise RuntimeError('no luck')", "cannot be imported: RuntimeError: no luck", UPDATE),
    "exits": ("raise SystemExit(3)", "cannot be imported: SystemExit: 3", UPDATE),
    "torn": ("def f(:", "cannot be imported: SyntaxError", UPDATE),
    "nonsense": (
        source("nonsense", returned="'a format'"),
        "must return one Format; it returned str",
        UPDATE,
    ),
    "hookless": ("", "it returned nothing", UPDATE),
    "misnamed": (source("other"), "calls itself 'other', its entry point 'misnamed'", UPDATE),
    "needy": (
        source("needy", more="dependency=ckptio.Dependency('no_such_lib', 'needy-dist[all]')"),
        "needs no_such_lib",
        "pip install 'needy-dist[all]'",
    ),
    "prints": ("print('hello')" + source("prints", match="print('sniffing')"), "", ""),
    "sniffs_badly": (source("sniffs_badly", match="1 / 0"), "", ""),
}
STATES = {name: (state, remedy.format(name=name)) for name, (_, state, remedy) in PLUGINS.items()} | {
    "next": ("made for plugin API v2; this ckptio has v1", "install a version of it for this ckptio"),
    "twice": ("claimed by twice (one, from first 1.0) and by twice (two, from second 1.0)", "uninstall one"),
    "off": ("switched off by CKPTIO_DISABLE", "take it out of there"),
}
SHIPPED = {info.name for info in ckptio.formats() if info.distribution == "ckptio"}


def install(folder: Path, distribution: str, points: str) -> None:
    """Make a distribution with one entry point, on a line after its group."""
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def ckpt(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Run the command where all of these are installed."""
    folder = tmp_path_factory.mktemp("installed")
    for name, (module, _, _) in PLUGINS.items():
        (folder / f"bad_{name}.py").write_text(module)
        install(folder, f"{name}-dist", f"[ckptio.formats.v1]\n{name} = bad_{name}\n")
    install(folder, "next-dist", "[ckptio.formats.v2]\nnext = never_imported\n")
    install(folder, "first", "[ckptio.formats.v1]\ntwice = one\n")
    install(folder, "second", "[ckptio.formats.v1]\ntwice = two\n")
    install(folder, "off-dist", "[ckptio.formats.v1]\noff = never_imported\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("CKPTIO_DISABLE", "off")
    registry.cache_clear()

    def run(*argv: str | Path) -> tuple[int, str, str]:
        status = main([str(each) for each in argv])
        return status, *capfd.readouterr()

    yield run
    registry.cache_clear()
    for name in PLUGINS:
        sys.modules.pop(f"bad_{name}", None)


def test_the_list_imports_none_of_them(ckpt: Callable[..., Any]) -> None:
    status, out, err = ckpt("formats")
    assert (status, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines()[1:]} == SHIPPED | STATES.keys()
    assert not [name for name in sys.modules if name.startswith("bad_")]


def test_check_shows_the_state_and_the_remedy_of_each(ckpt: Callable[..., Any]) -> None:
    status, out, err = ckpt("formats", "--check", "--json")
    assert status == 1
    assert err == "hello\n"
    problems: dict[str, list[Any]] = {}
    for each in json.loads(out):
        problems.setdefault(each["name"], []).append(each["problem"])
    assert problems.keys() == SHIPPED | STATES.keys()
    for name in SHIPPED:
        assert problems[name] == [None], name
    for name, (state, remedy) in STATES.items():
        for problem in problems[name]:
            assert state in (problem or "")
            assert remedy in (problem or "")
            assert (problem is None) == (state == "")
    assert len(problems["twice"]) == 2


def test_every_other_format_keeps_working(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    """The format of the source is told by its content, for which every plugin is loaded and asked."""
    path = golden(SOURCE)
    targets = sorted(SHIPPED - {"llmc"})
    for name in targets:
        status, _, err = ckpt("convert", path, tmp_path / name, "--checkpoint_format", name)
        assert (status, err.replace("hello\n", "").replace("sniffing\n", "")) == (0, "")
        status, _, _ = ckpt("convert", tmp_path / name, tmp_path / f"{name}.ckpt")
        assert status == 0
        assert read_ckpt(tmp_path / f"{name}.ckpt") == read_ckpt(path)


@pytest.mark.parametrize("name", [name for name, (state, _) in STATES.items() if state])
def test_asking_for_a_bad_one_gives_its_own_error(
    name: str, ckpt: Callable[..., Any], tmp_path: Path
) -> None:
    status, out, err = ckpt("convert", golden(SOURCE), tmp_path / "x", "--checkpoint_format", name)
    assert (status, out) == (1, "")
    state, remedy = STATES[name]
    assert state in err
    assert remedy in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
