"""A training loop is killed all over its saves by ckpt-chaos, and must go on as if it had not been.

``CKPTIO_CHAOS_POINTS=1000`` kills at every file event in every mode; by default a few of them are taken. The
tool sees neither the fsync of a directory nor os.write: other tests watch those.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LOOP = Path(__file__).with_name("chaos_loop.py")
POINTS = os.environ.get("CKPTIO_CHAOS_POINTS", "13")
MODES = ("before", "torn", "term", "unsynced")
PUBLISHED = re.compile(r"(\d+)\tos\.rename\t\.checkpoint_step_(\d+)-")


def chaos(
    work: Path, points: str, *options: str, checkpoints: str = "run/checkpoint_step_*"
) -> subprocess.CompletedProcess[str]:
    """Run the loop once unharmed, then once for each crash point, each time with a resume after it."""
    command = [
        *(sys.executable, "-m", "ckpt_chaos", "run", "--work", str(work), "--modes", ",".join(MODES)),
        *("--max-points", points, "--jobs", "2", "--timeout", "120", "--result-file", "{out}/final.bin"),
        *("--checkpoint-glob", f"{{out}}/{checkpoints}", "--step-regex", r"resumed from step (\d+)"),
        *("--fail-on", "HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK", "--", sys.executable, str(LOOP)),
        *("--checkpoint_dir", "{out}/run", "--save_steps", "2", "--resume_from", "latest"),
        *("--result", "{out}/final.bin", *options),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)


def results(work: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in work.glob("pt_*/result.json")]
    return [each for each in found if "point" in each]


@pytest.mark.parametrize("keep", ["0", "1"], ids=["keep all", "keep 1"])
def test_whatever_kills_it_the_run_goes_on_from_the_newest_step(tmp_path: Path, keep: str) -> None:
    work = tmp_path / "chaos"
    ended = chaos(work, POINTS, "--max_checkpoint_keep", keep)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = results(work)
    assert {each["point"][1] for each in found} == set(MODES)
    published = {
        int(step): int(event)
        for event, step in PUBLISHED.findall((work / "reference" / "events.log.rank0").read_text())
    }
    assert sorted(published) == [2, 4]
    for each in found:
        assert each["crashed"], each
        assert each["outcome"]["raised"] is None, each
        assert each["outcome"]["weights_diff"] == 0, each
        # The tool itself does not know of steps that pruning has removed by the end.
        newest = max((step for step, event in published.items() if event < each["point"][0]), default=0)
        assert each["outcome"]["resumed_from_step"] >= newest, each


def test_the_tool_finds_what_a_naive_save_loses(tmp_path: Path) -> None:
    ended = chaos(tmp_path / "chaos", "8", "--naive", checkpoints="naive_0.npz")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    torn = [each for each in results(tmp_path / "chaos") if each["point"][1] == "torn"]
    assert any(each["outcome"]["raised"] for each in torn)
