"""The sessions that the documents show, run for real; as a program it writes their output anew.

A session is a ``console`` block after the mark ``<!-- session -->``: lines that start with ``$ `` are
commands, run one after the other in one empty folder beside the repository's ``tests``. In what they
print, times, rates and losses are the only things that may differ.

Usage: ``python tests/readme.py`` brings README.md up to date.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
_SESSION = re.compile(r"(?<=<!-- session -->\n```console\n).*?(?=^```)", re.DOTALL | re.MULTILINE)
_VARYING = (
    (re.compile(r"in \d+\.\d+ s \(\d+ MB/s\)"), "in … s (… MB/s)"),
    (re.compile(r"\(\d+\.\d+ ms \| \d+ tok/s\)"), "(… ms | … tok/s)"),
    # Another processor may add in another order.
    (re.compile(r"(?<=train loss )\d+\.\d+|(?<=safetensors  )\d+\.\d+"), "…"),
    (re.compile(r"[\d,]+ +\d+ s(?=  safetensors)"), "… s"),
    # Such a column may be wider.
    (re.compile(r" {2,}"), "  "),
)


def sessions(text: str) -> list[str]:
    """Return the sessions of a document."""
    return _SESSION.findall(text)


def commands(session: str) -> list[str]:
    """Return the commands of a session."""
    return [line[2:] for line in session.splitlines() if line.startswith("$ ")]


def replay(session: str, folder: Path) -> str:
    """Run the commands of a session in ``folder``; return the session with what they print now."""
    for name in ("tests", "examples"):
        (folder / name).symlink_to(ROOT / name)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "110",
    }
    shown = []
    for command in commands(session):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        shown.append(f"$ {command}\n{done.stdout}")
    return "".join(shown)


def without_times(session: str) -> str:
    """Return a session in which every time, rate and loss reads alike."""
    for pattern, stand_in in _VARYING:
        session = pattern.sub(stand_in, session)
    return session


def main() -> None:
    path = ROOT / "README.md"
    text = path.read_text()
    for session in sessions(text):
        with tempfile.TemporaryDirectory() as folder:
            text = text.replace(session, replay(session, Path(folder)))
    path.write_text(text)


if __name__ == "__main__":
    main()
