"""A stranger's distribution, installed with pip beside the built wheel, works like what ships.

The environment is fresh: it sees the wheel of ckptio and the stranger's, and the libraries of the
environment that runs the tests, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from ckptio.testing import FormatContract
from golden import golden

ROOT = Path(__file__).parent.parent
NPYDIR = Path(__file__).parent / "third_party" / "npydir"
SOURCE = "infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/optimizer.ckpt"


class Outside:
    """A virtual environment outside of the repository, and commands that run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", symlinks=True)
        self.bin = folder / "venv" / "bin"
        (packages,) = (folder / "venv").glob("lib/python*/site-packages")
        # What stands first on the path wins: the wheel hides the checkout that the outer one may name.
        (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        """Run a command there without the network; return what it prints, or fail with all of it."""
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))
        }
        environment |= {
            "PATH": f"{self.bin}:{environment['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the option's value: 0 is "no isolation"
        }
        done = subprocess.run(
            list(map(str, command)),
            cwd=cwd or self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    folder = tmp_path_factory.mktemp("outside")
    made = Outside(folder)
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "wheel", ROOT)
    made.run(sys.executable, *build)
    (wheel,) = (folder / "wheel").glob("*.whl")
    made.run("python", "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    return made


@pytest.fixture(scope="module")
def npydir(outside: Outside) -> Path:
    """Install the stranger's package; return the folder where its own test is."""
    folder = outside.folder / "npydir"
    shutil.copytree(NPYDIR, folder)
    outside.run("python", "-m", "pip", "install", "--quiet", folder)
    return folder


def test_the_wheel_is_what_is_tested(outside: Outside) -> None:
    found = outside.run("python", "-c", "import ckptio; print(ckptio.__file__)")
    assert str(outside.folder / "venv") in found


@pytest.mark.usefixtures("npydir")
def test_it_is_listed_with_its_distribution_and_version(outside: Outside) -> None:
    listed: list[dict[str, Any]] = json.loads(outside.run("ckpt", "formats", "--check", "--json"))
    mine = next(each for each in listed if each["name"] == "npydir")
    assert (mine["distribution"], mine["version"], mine["api"]) == ("npydir", "0.3", "v1")
    assert [each["problem"] for each in listed] == len(listed) * [None]
    assert {each["distribution"] for each in listed} == {"ckptio", "npydir"}


@pytest.mark.usefixtures("npydir")
def test_a_checkpoint_goes_there_and_comes_back_exactly(outside: Outside, tmp_path: Path) -> None:
    source, there, back = golden(SOURCE), tmp_path / "out", tmp_path / "back.ckpt"
    outside.run("ckpt", "convert", source, there, "--checkpoint_format", "npydir")
    assert (there / "index.json").is_file()
    assert "npydir" in outside.run("ckpt", "inspect", there)
    outside.run("ckpt", "verify", there)
    outside.run("ckpt", "diff", source, there)
    outside.run("ckpt", "convert", there, back)
    assert back.read_bytes() == source.read_bytes()


def test_its_own_contract_test_passes_there(outside: Outside, npydir: Path) -> None:
    summary = outside.run(
        "python", "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", cwd=npydir
    )
    assert "passed" in summary


def test_the_tutorial_leads_from_an_empty_folder_to_a_passing_kit(outside: Outside, tmp_path: Path) -> None:
    text = tutorial()
    files = re.findall(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in files] == ["pyproject.toml", "ckpt_flat.py", "test_flat.py"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    (commands,) = re.findall(r"^<!-- commands -->\n```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    said = outside.run("bash", "-euc", commands, cwd=tmp_path)
    assert re.search(r"\d+ passed", said)
    assert "equal: tensors 1 equal, 0 changed" in said


def test_the_promises_are_listed_under_the_names_of_their_tests() -> None:
    (table,) = re.findall(r"^<!-- promises -->\n(.*?)\n\n", tutorial(), re.DOTALL | re.MULTILINE)
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == {name for name in dir(FormatContract) if name.startswith("test_")}


def tutorial() -> str:
    """Return the section of CONTRIBUTING.md that a writer of a format follows."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    begin = text.index("\n## Write a format\n")
    end = text.find("\n## ", begin + 1)
    return text[begin : end if end > 0 else None]
