"""Run directories of llm.c: the newest model that its own mark calls finished."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ckptio
from ckptio import CkptError, CorruptCheckpointError
from ckptio.cli import main
from golden import golden

STEPS = {
    9: "llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin",
    10: "llmc_gpt2/gpt2_L4H12C24V97T16_fp32.bin",
    100: "llmc_gpt2/gpt2_L2H12C48V97T32_fp32.bin",
}


def make_run(folder: Path, done: tuple[int, ...]) -> Path:
    folder.mkdir(exist_ok=True)
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


@pytest.mark.parametrize("cut", [0, 1000, 5000, -1])
def test_a_damaged_step_is_passed_over_by_name(cut: int, tmp_path: Path) -> None:
    run = make_run(tmp_path, (9, 10, 100))
    newest = run / "model_00000100.bin"
    os.truncate(newest, cut if cut >= 0 else newest.stat().st_size + cut)
    with pytest.warns(UserWarning, match=r"passed over for model_00000010.bin: .*model_00000100.bin: "):
        model = ckptio.open(run)
    with model:
        assert model.metadata["config"]["n_layer"] == 4
    for step in (9, 10):
        os.truncate(run / f"model_{step:08d}.bin", 5000)
    with pytest.raises(CorruptCheckpointError, match=newest.name):
        ckptio.open(run)


def test_the_report_of_a_run_is_that_of_the_step_that_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", (9, 10))
    os.truncate(run / "model_00000010.bin", 5000)
    assert main(["convert", str(run), str(tmp_path / "a.ckpt"), "--layout", "infinitrain"]) == 0
    assert "warning: passed over for model_00000009.bin" in capsys.readouterr().err
    with ckptio.open(golden(STEPS[9])) as whole, ckptio.open(tmp_path / "a.ckpt") as made:
        assert made.read("transformer.wte.weight").tobytes() == whole.read("transformer.wte.weight").tobytes()
