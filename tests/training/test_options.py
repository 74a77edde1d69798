"""`CheckpointOptions`: one value, validated in one place, and its flags in both spellings."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ckptio import OptionError, UnknownFormatError
from ckptio.training import CheckpointOptions


def parse(*words: str) -> CheckpointOptions:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    CheckpointOptions.add_arguments(parser)
    return CheckpointOptions.from_args(parser.parse_args(words))


def test_without_flags_nothing_is_saved_and_nothing_resumed() -> None:
    assert parse() == CheckpointOptions()
    assert not any(CheckpointOptions().should_save(step) for step in range(100))


@pytest.mark.parametrize("spell", [str, lambda flag: flag.replace("_", "-")], ids=["underscores", "hyphens"])
def test_all_flags_in_both_spellings(spell: Any) -> None:
    flags = {
        "--checkpoint_dir": "runs/one",
        "--save_steps": "20",
        "--max_checkpoint_keep": "10",
        "--save_optimizer_state": "false",
        "--resume_from": "latest",
        "--checkpoint_format": "msgpack",
        "--format_option": "chunk_bytes=1000",
    }
    assert parse(
        *(word for flag, value in flags.items() for word in (spell(flag), value))
    ) == CheckpointOptions(Path("runs/one"), 20, 10, False, "latest", "msgpack", {"chunk_bytes": "1000"})


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], True),
        (["--save_optimizer_state"], True),
        *(([f"--save_optimizer_state={word}"], True) for word in ("true", "True", "1", "yes", "on")),
        *(([f"--save-optimizer-state={word}"], False) for word in ("false", "FALSE", "0", "no", "off")),
        (["--save_optimizer_state", "--steps", "3"], True),
    ],
)
def test_booleans_take_a_word_or_stand_alone(words: list[str], value: bool) -> None:
    assert parse(*words).save_optimizer_state is value


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--use_llmc_checkpoint_io"], "--checkpoint_format replaced it"),
        (["--use-llmc-checkpoint-io=true"], "--checkpoint_format replaced it"),
        (["--checkpoint_format", "bin"], "'bin' is gone: say 'llmc'"),
        (["--checkpoint-format=pth"], "'pth' is gone"),
        (["--checkpoint_format", "statedct"], "did you mean 'statedict'"),
        (["--save_optimizer_state", "maybe"], "neither true nor false"),
        (["--format_option", "chunk"], "not KEY=VALUE"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_that_says_what_to_do(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_the_removed_switch_is_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    shown = capsys.readouterr().out
    assert "use_llmc" not in shown
    assert all(f"--{field.name}" in shown for field in dataclasses.fields(CheckpointOptions)[:6])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"save_steps": 10}, "needs --checkpoint_dir"),
        ({"checkpoint_dir": "x"}, "needs --save_steps"),
        ({"resume_from": "latest"}, "needs --checkpoint_dir"),
        ({"resume_from": ""}, "--resume_from is empty"),
        ({"checkpoint_dir": "x", "save_steps": -1}, "--save_steps -1"),
        ({"checkpoint_dir": "x", "save_steps": True}, "--save_steps True"),
        ({"max_checkpoint_keep": -1}, "--max_checkpoint_keep -1"),
        ({"max_checkpoint_keep": 1.5}, "--max_checkpoint_keep 1.5"),
        ({"format_options": {"chunks": 3}}, "statedict.*no option 'chunks'"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        CheckpointOptions(**options)


@pytest.mark.parametrize("name", ["bin", "pth", "nothing"])
def test_an_unknown_format_is_refused_at_once(name: str) -> None:
    with pytest.raises(UnknownFormatError, match="installed"):
        CheckpointOptions(checkpoint_format=name)


def test_a_save_is_due_after_every_so_many_steps() -> None:
    options = CheckpointOptions(checkpoint_dir=Path("x"), save_steps=20)
    assert [step for step in range(101) if options.should_save(step)] == [20, 40, 60, 80, 100]


def test_options_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        CheckpointOptions().save_steps = 3  # type: ignore[misc]
