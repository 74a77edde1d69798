"""Run directories of llm.c: the newest model that its own mark calls finished."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptio
from ckptio import CkptError
from golden import golden

STEPS = {
    9: "llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin",
    10: "llmc_gpt2/gpt2_L4H12C24V97T16_fp32.bin",
    100: "llmc_gpt2/gpt2_L2H12C48V97T32_fp32.bin",
}


def make_run(folder: Path, done: tuple[int, ...]) -> Path:
    for step, model in STEPS.items():
        (folder / f"model_{step:08d}.bin").write_bytes(golden(model).read_bytes())
    for step in done:
        (folder / f"DONE_{step:08d}").touch()
    return folder


@pytest.mark.parametrize(
    ("done", "layers", "width"), [((9, 10), 4, 24), ((10, 100, 7), 2, 48), ((9,), 2, 32)]
)
def test_the_newest_finished_step_is_opened(
    done: tuple[int, ...], layers: int, width: int, tmp_path: Path
) -> None:
    with ckptio.open(make_run(tmp_path, done)) as model:
        config = model.metadata["config"]
        assert (config["n_layer"], config["n_embd"]) == (layers, width)


def test_a_run_without_a_finished_step_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path, ())
    with pytest.raises(CkptError, match="no installed format recognises this directory"):
        ckptio.open(tmp_path)
    with pytest.raises(CkptError, match="DONE_STEP"):
        ckptio.open(tmp_path, checkpoint_format="llmc")
