"""The distribution: one wheel with what the folders hold, a public surface that is sorted and lazy."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import ckptio

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "core" / "ckptio", *(ROOT / "plugins").glob("ckptio_*")]
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (found,) = out.glob("*.whl")
    return zipfile.ZipFile(found)


def test_folders_packages_and_entry_points_agree() -> None:
    assert sorted(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == FOLDERS
    points = PROJECT["project"]["entry-points"]["ckptio.formats.v1"]
    assert sorted(points.values()) == sorted(Path(folder).name for folder in FOLDERS if "plugins" in folder)
    assert all(module == f"ckptio_{name}" for name, module in points.items())
    assert {info.name for info in ckptio.formats() if info.distribution == "ckptio"} == set(points)


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    info = {top for top in tops if top.endswith(".dist-info")}
    assert len(info) == 1
    assert tops - info == {Path(folder).name for folder in FOLDERS}
    python = {name for name in wheel.namelist() if name.endswith(".py")}
    on_disk = {
        path.relative_to((ROOT / folder).parent).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert python == on_disk
    assert "ckptio/py.typed" in wheel.namelist()


def test_the_wheel_names_its_command_and_its_plugins(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    text = wheel.read(name).decode()
    assert "ckpt = ckptio.cli:main" in text
    assert "[ckptio.formats.v1]" in text


def test_the_public_names_are_sorted_and_all_there() -> None:
    assert ckptio.__all__ == sorted(ckptio.__all__)
    for name in ckptio.__all__:
        assert getattr(ckptio, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        ckptio.nothing  # noqa: B018


def test_no_public_name_is_also_a_module() -> None:
    # Importing a submodule sets an attribute of the package: it would hide the public name.
    modules = {path.stem for path in (ROOT / "core" / "ckptio").iterdir()}
    assert not modules & set(ckptio.__all__)


def test_importing_the_package_loads_neither_numpy_nor_a_plugin() -> None:
    loaded = "sorted(m for m in sys.modules if m.startswith(('numpy', 'pluggy', 'ckptio.', 'ckptio_')))"
    code = f"import sys, ckptio; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ckptio.lazily']"


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if "plugins" in folder])
def test_a_plugin_imports_public_names_and_never_another_plugin(folder: str) -> None:
    own = Path(folder).name
    for path in (ROOT / folder).rglob("*.py"):
        for name in _imports(path):
            assert not (name.startswith("ckptio_") and name.split(".")[0] != own), f"{path.name}: {name}"
            assert not (name.startswith("ckptio.") and "._" in name), f"{path.name}: {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "core" / "ckptio").rglob("*.py")), ids=lambda path: path.stem)
def test_nothing_but_the_command_line_prints(path: Path) -> None:
    if "cli" in path.parts:
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
