"""The README tells the truth: its sessions print what it says, its Python runs, its commands are CI's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

import ckptio
from ckptio.cli import main
from ckptio.models import apply_layout, recognise
from golden import DATA, golden
from readme import ROOT, commands, replay, sessions, without_times

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("number", range(len(sessions(README))))
def test_the_session_prints_what_the_readme_shows(number: int, tmp_path: Path) -> None:
    session = sessions(README)[number]
    assert len(commands(session)) >= 3
    assert without_times(replay(session, tmp_path)) == without_times(session)


CELLS = re.findall(r"`(ckpt convert [^`]+)`", README.partition("<!-- table -->")[2].partition("\n\n")[0])
SOURCES = {
    "gpt2.bin": golden("llmc_gpt2/gpt2_L2H12C48V97T32_fp32.bin"),
    "model.ckpt": golden("infinitrain/runs/gpt2_sgd/ckpt/checkpoint_step_000002/model.ckpt"),
    "hub": DATA / "golden" / "hf" / "gpt2_fp32_single",
    "gpt2.gguf": DATA / "llama_cpp" / "gpt2.f16.gguf",
}
"""What real programs wrote, under the names that the table has."""
WANTED = {"out": "hf", "out.gguf": "gguf", "out.bin": "llmc", "out.ckpt": "infinitrain", "out.pt": None}


def test_the_table_has_every_way() -> None:
    ways = [command.split()[2:4] for command in CELLS]
    sources = ("gpt2.bin", "model.ckpt", "model.pt", "hub/", "gpt2.gguf")
    targets = ("out/", "out.gguf", "out.bin", "out.ckpt", "out.pt")
    assert ways == [[source, target] for source in sources for target in targets]


@pytest.mark.parametrize("command", CELLS)
def test_a_command_of_the_table_makes_the_same_model(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, path in SOURCES.items():
        (tmp_path / name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    arrays = ckptio.load("model.ckpt")
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, "model.pt")
    _, _, source, target, *flags = shlex.split(command)
    assert main(["convert", source, target, *flags]) == 0
    with ckptio.open(source) as before, ckptio.open(target) as after:
        found = recognise(after)
        assert found is not None
        wanted = WANTED[target.rstrip("/")]
        assert wanted is None or wanted in found.layouts
        one, two = canonical(before), canonical(after)
        assert one.specs.keys() == two.specs.keys()
        for name, spec in one.specs.items():
            # What a cast or q8_0 may change, and no more.
            np.testing.assert_allclose(two.read(name), one.read(name), rtol=2**-8, atol=0.006, err_msg=name)
            assert two.specs[name].shape == spec.shape


def canonical(checkpoint: ckptio.Checkpoint) -> ckptio.Checkpoint:
    result = apply_layout(checkpoint, "llmc")
    assert result.problems == []
    return result.checkpoint


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
