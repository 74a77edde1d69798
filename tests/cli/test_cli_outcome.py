"""How the command ends: help, usage, errors, signals, a closed pipe, bugs; and what it never prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio.reading
from ckptio.cli import main
from ckptio.cli.outcome import Stopped
from golden import golden

GPT2 = golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin")
COMMANDS = ("convert", "inspect", "diff", "verify", "formats")
SLOW = """
import signal, sys, time
from ckptio.output import OutputFile

# Whoever started the tests may have them go on when a terminal closes.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

def write(self, data):
    print("writing", flush=True)
    time.sleep(60)

OutputFile.write = write
from ckptio.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_help_names_every_command(ckpt: Callable[..., Any], argv: list[str]) -> None:
    ended = ckpt(*argv)
    assert ended.status == 0
    for command in COMMANDS:
        assert f"\n  {command} " in ended.out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_has_help_and_json(ckpt: Callable[..., Any], command: str, flag: str) -> None:
    ended = ckpt(command, flag)
    assert ended.status == 0
    assert f"Usage: ckpt {command}" in ended.out
    assert "--json" in ended.out


def test_version(ckpt: Callable[..., Any]) -> None:
    assert ckpt("--version").out == f"ckpt {version('ckptio')}\n"


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (["convert"], "SOURCE"),
        (["convert", "a"], "TARGET"),
        (["convert", "a", "b", "-o", "chunk_bytes"], "'chunk_bytes' is not KEY=VALUE"),
        (["convert", "a", "b", "--config", "=3"], "'=3' is not KEY=VALUE"),
        (["convert", "a", "b", "--config", "n_head=3", "--config", "n_head=4"], "'n_head' is given twice"),
        (["inspect", "a", "-O", "x"], "'x' is not KEY=VALUE"),
        (["diff", "a"], "B"),
        (["diff", "a", "b", "--atol", "much"], "--atol"),
        (["verify", "a", "b"], "unexpected extra argument"),
        (["inspect", "--colour", "a"], "--colour"),
        (["inpect"], "inpect"),
    ],
)
def test_a_wrong_use_ends_with_2(ckpt: Callable[..., Any], argv: list[str], what: str) -> None:
    ended = ckpt(*argv)
    assert ended.status == 2
    assert what in ended.err
    assert ended.out == ""


@pytest.mark.parametrize(
    "spelling",
    [
        ["--use_llmc_checkpoint_io"],
        ["--use-llmc-checkpoint-io"],
        ["--use_llmc_checkpoint_io=true"],
        ["--use_llmc_checkpoint_io", "false"],
        ["-use_llmc_checkpoint_io"],
        ["--nouse_llmc_checkpoint_io"],
        ["--no-use-llmc-checkpoint-io"],
    ],
)
@pytest.mark.parametrize("command", [*COMMANDS, None])
def test_the_second_switch_gets_one_line(
    ckpt: Callable[..., Any], spelling: list[str], command: str | None
) -> None:
    ended = ckpt(*([command] if command else []), "a", *spelling)
    assert (ended.status, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert "--checkpoint_format" in line
    assert "llmc" in line
    assert "statedict" in line


@pytest.mark.parametrize("flag", ["--checkpoint_format", "--checkpoint-format"])
@pytest.mark.parametrize(("value", "now"), [("bin", ("llmc", "statedict")), ("pth", ("statedict",))])
def test_the_historical_values_get_the_line_of_the_registry(
    ckpt: Callable[..., Any], flag: str, value: str, now: tuple[str, ...]
) -> None:
    ended = ckpt("inspect", GPT2, flag, value)
    assert ended.status == 1
    (line,) = ended.err.splitlines()
    assert f"'{value}' is gone" in line
    assert all(f"'{name}'" in line for name in now)


@pytest.mark.parametrize(("command", "status"), [("inspect", 1), ("verify", 1), ("convert", 1), ("diff", 2)])
def test_a_missing_file_is_one_line(
    ckpt: Callable[..., Any], tmp_path: Path, command: str, status: int
) -> None:
    missing = tmp_path / "missing.ckpt"
    second = [tmp_path / "b.ckpt"] if command in ("convert", "diff") else []
    ended = ckpt(command, missing, *second)
    assert (ended.status, ended.out) == (status, "")
    assert ended.err == f"error: {missing}: No such file or directory\n"


def test_an_error_comes_with_its_notes(ckpt: Callable[..., Any]) -> None:
    ended = ckpt("inspect", GPT2, "--checkpoint_format", "statedict")
    assert ended.status == 1
    error, *notes = ended.err.splitlines()
    assert error.startswith(f"error: {GPT2}: ")
    assert any("looks like llmc" in note for note in notes)


@pytest.mark.parametrize(("command", "status"), [("inspect", 1), ("diff", 2)])
def test_a_bug_shows_its_plain_traceback_and_notes(
    ckpt: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, command: str, status: int
) -> None:
    def broken(*_: object) -> None:
        error = ZeroDivisionError("a bug")
        error.add_note("what was at work")
        raise error

    monkeypatch.setattr(ckptio.reading, "apply_sidecar", broken)
    ended = ckpt(command, GPT2, *([GPT2] if command == "diff" else []))
    assert ended.status == status
    assert ended.err.startswith("Traceback (most recent call last):")
    assert ended.err.endswith("ZeroDivisionError: a bug\nwhat was at work\n")


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGHUP, 129, "hung up"),
    ],
)
def test_a_signal_ends_with_one_line_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, status: int, word: str
) -> None:
    target = tmp_path / "out.ckpt"
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, "convert", str(GPT2), str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "writing\n"
        assert len(list(tmp_path.iterdir())) == 1  # the hidden sibling
        process.send_signal(number)
        assert process.wait(timeout=30) == status
        assert process.stderr.read() == f"error: {word}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [(KeyboardInterrupt(), 130, "interrupted"), (Stopped(signal.SIGTERM), 143, "terminated")],
)
def test_a_signal_before_the_command_has_begun_ends_with_one_line(
    ckpt: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    error: KeyboardInterrupt,
    status: int,
    word: str,
) -> None:
    def command() -> None:
        raise error

    monkeypatch.setattr("ckptio.cli.app.command", command)
    ended = ckpt("--version")
    assert (ended.status, ended.err) == (status, f"error: {word}\n")


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        main(["--version"])
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handlers_of_signals_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    main(["--version"])
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("argv", [["inspect", str(GPT2)], ["--help"]])
def test_a_closed_pipe_ends_quietly(argv: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "ckptio", *argv],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert ended.stderr == ""
    assert ended.returncode in (1, 141)


def test_hostile_names_and_metadata_never_reach_the_terminal(
    ckpt: Callable[..., Any], saved: Callable[..., Path]
) -> None:
    name = "\x1b[31mred\n[bold]\u202e\x9b"
    path = saved(
        "x.msgpack",
        {name: np.ones(2, np.float32)},
        leaves={"leaf\x07": "\x1b]0;t\x07"},
        metadata={"k\r": "v\x1b"},
    )
    other = saved("y.msgpack", {"z\x1b": np.ones(2, np.float32)})
    runs = [("inspect", path), ("verify", path), ("diff", path, other)]
    runs.append(("convert", path, path.with_name("z.msgpack"), "--drop", name))
    for argv in runs:
        ended = ckpt(*argv)
        assert {each for each in ended.out + ended.err if not each.isprintable()} == {"\n"}, argv
    assert r"\x1b[31mred\x0a[bold]\u202e\x9b" in ckpt("inspect", path).out


def test_a_file_name_that_is_not_text_is_shown(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    ended = ckpt("inspect", os.fsdecode(os.fsencode(tmp_path) + b"/\xff.ckpt"))
    assert ended.status == 1
    assert r"/\udcff.ckpt: No such file" in ended.err


def test_a_warning_of_the_library_is_one_line(ckpt: Callable[..., Any], saved: Callable[..., Path]) -> None:
    path = saved("a.ckpt", {"a": np.ones(2, np.float32)}, metadata={"note": "kept beside"})
    saved("b.ckpt", {"b": np.ones(3, np.float32)})
    os.replace(path.with_name("b.ckpt"), path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # only what the command lets through would raise
        warnings.simplefilter("default", ckptio.SidecarWarning)
        ended = ckpt("inspect", path)
    assert ended.status == 0
    (line,) = ended.err.splitlines()
    assert line.startswith(f"warning: {path}.meta.json: ignored: ")


def test_a_warning_that_was_made_an_error_is_one_line_too(
    ckpt: Callable[..., Any], saved: Callable[..., Path]
) -> None:
    path = saved("a.ckpt", {"a": np.ones(2, np.float32)}, metadata={"note": "kept beside"})
    path.with_name("a.ckpt.meta.json").write_text("{")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ended = ckpt("inspect", path)
    assert ended.status == 1
    (line,) = ended.err.splitlines()
    assert line.startswith(f"error: {path}.meta.json: ignored: ")


def test_output_survives_an_encoding_without_the_characters(saved: Callable[..., Path]) -> None:
    path = saved("é.ckpt", {"wéight": np.ones(2, np.float32)})
    ended = subprocess.run(
        [sys.executable, "-m", "ckptio", "inspect", str(path)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert r"w\xe9ight" in ended.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_formats(shell: str) -> None:
    asked = {"COMP_WORDS": "ckpt inspect --checkpoint_format ll", "COMP_CWORD": "3"}
    asked |= {"_TYPER_COMPLETE_ARGS": asked["COMP_WORDS"], "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ended = subprocess.run(
        [sys.executable, "-m", "ckptio"],
        env={**os.environ, **asked, "_CKPT_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "llmc" in ended.stdout
    assert "statedict" not in ended.stdout
