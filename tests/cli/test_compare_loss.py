"""compare-loss: which lines count, what matches, and the statuses of diff(1)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ckptio.losses import compare_losses, ranges, read_losses
from golden import all_golden

LINES = {
    "ours": "step    1/100 | train loss 10.912345 | lr 1.00e-04 | (239.64 ms | 1068 tok/s)",
    "InfiniTrain": "E20250930 22:04:04.417710 139942298439680 main.cc:237] "
    "step    1/10 | train loss 10.912345 | lr 1.00e-04 | (239.64 ms | 1068 tok/s | peak used: 1234 MB)",
    "train_gpt2.py": "step    1/10 | train loss 10.912345 | norm 15.2012 | lr 1.00e-04 | (76.15 ms)",
    "train_gpt2.cu": "step    1/10 | loss 10.912345 (+nanz)| norm 15.2012 (+nanz)| lr 1.00e-04 | "
    "76.15 ms | 39.5% bf16 MFU | 178000 tok/s",
    "train_gpt2.c": "step 0: train loss 10.912345 (took 1718.2 ms)",
    "main.log": "s:0 trl:10.912345 lr:0.000100 norm:15.20",
    "rewritten in place": "  1%|#\r 99%|##\rstep    1/100 | train loss 10.912345 | lr 1.00e-04",
}
OTHER_LINES = (
    "val loss 4.512345",
    "s:0 tel:4.5123",
    "step 20: val loss 4.512345",
    "the first step 1/100 | train loss was high",
    "step 1/100 | train loss 1.2.3",
    "step    1/100 | train loss 10.91abc",
    "step x/100 | train loss 1.0",
    f"step {'9' * 5000}/1 | train loss 1.0",
    f"step 1/1 | train loss {'9' * 5000}",
)


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    """Write a log of these losses, by step, in our own line."""

    def write(name: str, losses: Mapping[int, float | str] | list[tuple[int, str]]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pairs = losses.items() if isinstance(losses, Mapping) else losses
        lines = [f"step {step:4d}/100 | train loss {loss} | lr 1.00e-04\n" for step, loss in pairs]
        path.write_text("".join(lines))
        return path

    return write


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_every_program_s_line_is_step_1(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"some words\n{line}\nmore words\n", newline="")
    assert read_losses(path) == {1: (Decimal("10.912345"),)}


@pytest.mark.parametrize("line", OTHER_LINES, ids=lambda line: line[:30])
def test_what_is_no_training_loss_is_passed_over(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{line}\n")
    assert read_losses(path) == {}


def test_a_log_may_hold_any_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"\xff\x00" * 300_000 + b"\nstep 7/9 | train loss 1e-3\n\xfe")
    assert read_losses(path) == {7: (Decimal("0.001"),)}


@pytest.mark.parametrize(
    "unbroken", all_golden("infinitrain/runs/*/noresume.losses"), ids=lambda path: path.parent.name
)
def test_infinitrain_s_own_resumed_runs_match(ckpt: Callable[..., Any], unbroken: Path) -> None:
    (resumed,) = unbroken.parent.glob("resume_from_*.losses")
    start = int(resumed.stem.removeprefix("resume_from_"))
    end = int(unbroken.read_text().splitlines()[-1].partition("/")[0].removeprefix("step"))
    ended = ckpt("compare-loss", unbroken, resumed)
    count = end - start
    assert ended.status == 0
    assert f"{count}/{count} common steps matched, steps 1-{start} only in A;" in ended.out
    assert ckpt("compare-loss", unbroken, resumed, "--strict").status == 1
    assert ckpt("compare-loss", unbroken, unbroken, "--strict").status == 0


def test_the_summary_of_a_resumed_run(ckpt: Callable[..., Any], log: Callable[..., Path]) -> None:
    whole = log("a.log", {step: f"{10 / step:.6f}" for step in range(1, 101)})
    resumed = log("b.log", {step: f"{10 / step:.6f}" for step in range(41, 101)})
    out = ckpt("compare-loss", whole, resumed).out
    assert "60/60 common steps matched, steps 1-40 only in A; largest difference 0" in out
    out = ckpt("compare-loss", resumed, whole).out
    assert "60/60 common steps matched, steps 1-40 only in B;" in out


@pytest.mark.parametrize(
    ("name", "options", "apart", "status"),
    [
        # The largest that matches, and the next that can be printed: exact in decimal, not in binary.
        ("a.log", (), "10.912355", 0),
        ("a.log", (), "10.912356", 1),
        ("a_bfloat16.log", (), "10.922345", 0),
        ("a_bfloat16.log", (), "10.922346", 1),
        ("a.log", ("--dtype", "bfloat16"), "10.922345", 0),
        ("a_bfloat16.log", ("--dtype", "float32"), "10.922345", 1),
        ("a_bfloat16.log", ("--tolerance", "1e-6"), "10.912346", 0),
        ("a_bfloat16.log", ("--tolerance", "1e-6"), "10.912347", 1),
        ("a.log", ("--tolerance", "0"), "10.912345", 0),
        ("a.log", ("--tolerance", "0"), "10.912346", 1),
    ],
)
def test_the_tolerance(
    ckpt: Callable[..., Any],
    log: Callable[..., Path],
    name: str,
    options: tuple[str, ...],
    apart: str,
    status: int,
) -> None:
    one, other = log(f"one/{name}", {3: "10.912345"}), log("two/b.log", {3: apart})
    assert ckpt("compare-loss", one, other, *options).status == status
    assert ckpt("compare-loss", other, one, *options).status == status


@pytest.mark.parametrize(
    ("one", "other", "status"),
    [("nan", "nan", 0), ("nan", "1.0", 1), ("inf", "inf", 0), ("inf", "-inf", 1), ("inf", "nan", 1)],
)
def test_a_nan_matches_a_nan_and_nothing_else(
    ckpt: Callable[..., Any], log: Callable[..., Path], one: str, other: str, status: int
) -> None:
    paths = log("a.log", {1: one}), log("b.log", {1: other})
    assert ckpt("compare-loss", *paths).status == status
    assert json.loads(ckpt("compare-loss", *paths, "--json").out)["matched"] == (status == 0)


def test_every_loss_of_a_repeated_step_must_match(ckpt: Callable[..., Any], log: Callable[..., Path]) -> None:
    whole = log("a.log", {1: "3.0", 2: "2.0"})
    assert ckpt("compare-loss", whole, log("b.log", [(1, "3.0"), (2, "2.0"), (2, "2.0")])).status == 0
    for again in (["2.0", "2.5"], ["2.5", "2.0"], ["2.0", "2.5", "2.0"], ["nan", "2.0"], ["2.0", "nan"]):
        twice = log("b.log", [(1, "3.0"), *((2, loss) for loss in again)])
        ended = ckpt("compare-loss", whole, twice)
        assert ended.status == 1
        assert "1/2 common steps matched" in ended.out


def test_a_difference_is_a_line_and_counted(ckpt: Callable[..., Any], log: Callable[..., Path]) -> None:
    one = log("a.log", {1: "3.5", 2: "2.0", 3: "1.0"})
    other = log("b.log", {2: "2.25", 3: "1.0", 9: "0.5"})
    ended = ckpt("compare-loss", one, other)
    assert ended.status == 1
    assert "\n~ step 2: 2.000000 -> 2.250000, by 0.25\n" in ended.out
    assert (
        "1/2 common steps matched, step 1 only in A, step 9 only in B; largest difference 0.25" in ended.out
    )
    found = json.loads(ckpt("compare-loss", one, other, "--json").out)
    (compared,) = found["logs"]
    assert compared["differing"] == [{"step": 2, "one": 2.0, "other": 2.25, "distance": 0.25}]
    assert (compared["common_steps"], compared["matched_steps"]) == (2, 1)
    assert (compared["only_in_a"], compared["only_in_b"]) == ([1], [9])


def test_no_common_step_is_a_failure_that_says_so(ckpt: Callable[..., Any], log: Callable[..., Path]) -> None:
    one, other, empty = log("a.log", {1: "3.5"}), log("b.log", {2: "3.5"}), log("c.log", {})
    ended = ckpt("compare-loss", one, other)
    assert (ended.status, ended.err) == (1, "")
    assert "no common step, step 1 only in A, step 2 only in B" in ended.out
    for pair in ((one, empty), (empty, one), (empty, empty)):
        ended = ckpt("compare-loss", *pair)
        assert ended.status == 1
        assert "(no line with a loss)" in ended.out
        assert "no common step" in ended.out


def test_directories_of_logs(ckpt: Callable[..., Any], log: Callable[..., Path], tmp_path: Path) -> None:
    for side in ("one", "two"):
        log(f"{side}/gpt2_1.log", {1: "3.0"})
        log(f"{side}/deep/gpt2_1_bfloat16.log", {1: "3.0" if side == "one" else "3.01"})
    log("one/more.log", {1: "3.0"})
    log("one/notes.txt", {1: "3.0"})
    one, two = tmp_path / "one", tmp_path / "two"
    ended = ckpt("compare-loss", one, two)
    assert ended.status == 0, ended.out
    assert ended.out.splitlines()[-2:] == ["more.log: only in A", "2/2 logs matched"]
    assert "tolerance 0.01 (bfloat16)" in ended.out
    assert ckpt("compare-loss", one, two, "--strict").status == 1
    log("two/gpt2_1.log", {1: "3.01"})
    ended = ckpt("compare-loss", one, two)
    assert ended.status == 1
    assert ended.out.splitlines()[-1] == "1/2 logs matched"


def test_directories_without_a_log_in_common_do_not_match(
    ckpt: Callable[..., Any], log: Callable[..., Path], tmp_path: Path
) -> None:
    log("one/a.log", {1: "3.0"})
    log("two/b.log", {1: "3.0"})
    ended = ckpt("compare-loss", tmp_path / "one", tmp_path / "two")
    assert ended.status == 1
    assert "there is no log (*.log) of one name in both that has losses" in ended.out
    for side in ("one", "two"):
        log(f"{side}/build.log", {})
    ended = ckpt("compare-loss", tmp_path / "one", tmp_path / "two")
    assert ended.status == 1


def test_logs_of_builds_are_passed_over_and_a_run_without_losses_is_not(
    ckpt: Callable[..., Any], log: Callable[..., Path], tmp_path: Path
) -> None:
    for side in ("one", "two"):
        log(f"{side}/a.log", {1: "3.0"})
        log(f"{side}/build.log", {})
    ended = ckpt("compare-loss", tmp_path / "one", tmp_path / "two", "--strict")
    assert ended.status == 0
    assert "build.log: no line with a loss, nor in the other; passed over" in ended.out
    log("two/a.log", {})
    assert ckpt("compare-loss", tmp_path / "one", tmp_path / "two").status == 1


def test_what_cannot_be_compared_is_trouble(
    ckpt: Callable[..., Any], log: Callable[..., Path], tmp_path: Path
) -> None:
    one = log("one/a.log", {1: "3.0"})
    for argv in (
        (one, tmp_path / "absent.log"),
        (one, one.parent),
        (one, one, "--tolerance", "-1"),
        (one, one, "--tolerance", "nan"),
        (one, one, "--tolerance", "much"),
        (one, one, "--dtype", "int8"),
    ):
        ended = ckpt("compare-loss", *argv)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([7]) == "7"
    assert ranges([1, 2, 3, 5, 7, 8]) == "1-3, 5, 7-8"


def test_the_distance_of_long_numbers_is_a_number() -> None:
    huge, tiny = (Decimal("1e999"),), (Decimal("1e-999"),)
    assert compare_losses({1: huge}, {1: tiny}, Decimal(0)).matched == 0
    assert compare_losses({1: tiny}, {1: tiny}, Decimal(0)).matched == 1
