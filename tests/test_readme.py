"""The README tells the truth: its sessions print what it says, its Python runs, its commands are CI's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from readme import ROOT, commands, replay, sessions, without_times

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("number", range(len(sessions(README))))
def test_the_session_prints_what_the_readme_shows(number: int, tmp_path: Path) -> None:
    session = sessions(README)[number]
    assert len(commands(session)) >= 3
    assert without_times(replay(session, tmp_path)) == without_times(session)


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert blocks
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_ci_runs_the_second_command_word_for_word() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "<!-- tests -->" in script
    marked = re.findall(r"^<!-- (install|tests) -->\n```sh\n(.+)\n```$", README, re.MULTILINE)
    assert [name for name, _ in marked] == ["install", "tests"]
    assert all("\n" not in command for _, command in marked)


def test_every_file_that_the_readme_names_is_there() -> None:
    named = re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(r"tests/[\w./-]+\.\w+", README)
    assert named
    for name in named:
        assert (ROOT / name).exists(), name
