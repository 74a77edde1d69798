"""The picture in CONTRIBUTING.md is true: every module and plugin is in it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^```text\n(.*?)^```", re.DOTALL | re.MULTILINE)


def picture() -> dict[str, set[str]]:
    """Return what the picture names: the entries below each folder that it shows."""
    folder = ""
    found: dict[str, set[str]] = {}
    block = _BLOCK.search((ROOT / "CONTRIBUTING.md").read_text())
    assert block is not None
    for line in block[1].splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            folder = name.rstrip("/")
            found.setdefault(folder, set())
        elif line.startswith("  ") and line[2] != " ":
            found[folder].add(name.rstrip("/"))
    return found


def test_every_module_of_the_core_is_in_the_picture_and_nothing_else() -> None:
    on_disk = {path.name for path in (ROOT / "core" / "ckptio").iterdir() if path.name != "__pycache__"}
    assert picture()["core/ckptio"] == on_disk


def test_every_plugin_is_in_the_picture_and_nothing_else() -> None:
    assert picture()["plugins"] == {path.name for path in (ROOT / "plugins").iterdir() if path.is_dir()}


def test_what_else_it_shows_is_there() -> None:
    assert all((ROOT / folder).exists() for folder in picture())
