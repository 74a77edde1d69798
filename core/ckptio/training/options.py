"""The options of saving and resuming: one frozen value, and its six flags on a command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ckptio.errors import CkptError, OptionError, UnsupportedError
from ckptio.format import Format, parse_options
from ckptio.registry import registry

__all__ = ["CheckpointOptions"]

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """Where, when and how a training run is saved, and what it goes on from.

    ``checkpoint_dir`` holds the step directories; its parent must exist. Every ``save_steps`` steps one
    is saved (0: never); ``max_checkpoint_keep`` of them stay (0: all). ``resume_from`` is a step
    directory, a run directory, or ``latest`` (the newest complete one of ``checkpoint_dir``).
    ``checkpoint_format`` names the format of the files, ``format_options`` are that format's own.

    Raises `OptionError` for values that cannot be meant, and `FormatError` for an unknown format.
    """

    checkpoint_dir: Path | None = None
    save_steps: int = 0
    max_checkpoint_keep: int = 0
    save_optimizer_state: bool = True
    resume_from: str | None = None
    checkpoint_format: str = "statedict"
    format_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.checkpoint_dir is not None:
            object.__setattr__(self, "checkpoint_dir", Path(self.checkpoint_dir))
        if self.resume_from is not None:
            object.__setattr__(self, "resume_from", str(self.resume_from))
        for name in ("save_steps", "max_checkpoint_keep"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise OptionError(f"--{name} {value!r}: a whole number from 0 up is expected")
        if self.save_steps and self.checkpoint_dir is None:
            raise OptionError(f"--save_steps {self.save_steps} needs --checkpoint_dir: where to save")
        if self.checkpoint_dir is not None and not self.save_steps:
            raise OptionError(
                f"--checkpoint_dir {self.checkpoint_dir} needs --save_steps: after how many steps to save"
            )
        if self.resume_from == "latest" and self.checkpoint_dir is None:
            raise OptionError("--resume_from latest needs --checkpoint_dir: where to look")
        if self.resume_from == "":
            raise OptionError(
                "--resume_from is empty: a step directory, a run directory or 'latest' is expected"
            )
        self.parsed_format_options()

    def should_save(self, step: int) -> bool:
        """Return whether a checkpoint is due after ``step`` finished steps."""
        return self.save_steps > 0 and step > 0 and step % self.save_steps == 0

    def format(self) -> Format:
        """Return the chosen format, ready to write; `FormatError` or `UnsupportedError` without one."""
        found = registry().require(self.checkpoint_format)
        if not found.capabilities.writes:
            raise UnsupportedError(f"the format {found.name!r} can be read but not written")
        return found

    def parsed_format_options(self) -> dict[str, Any]:
        """Return a value for each of the format's write options; `OptionError` for an unknown one."""
        found = self.format()
        owner = f"the format {found.name!r}"
        return parse_options(found.write_options, self.format_options, owner=owner, flag="--format_option")

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the six flags to a parser, each spelled with underscores or hyphens.

        ``--format_option KEY=VALUE`` (repeatable) passes an option on to the format.
        """
        group = parser.add_argument_group("checkpoints")

        def add(name: str, **rest: Any) -> None:
            hyphens = name.replace("_", "-")
            group.add_argument(f"--{name}", f"--{hyphens}", dest=name, **rest)

        add("checkpoint_dir", metavar="DIR", type=Path, help="the directory of the run's checkpoints")
        add("save_steps", metavar="N", type=int, default=0, help="save every N steps (0: never)")
        add("max_checkpoint_keep", metavar="N", type=int, default=0, help="keep the newest N (0: all)")
        add(
            "save_optimizer_state",
            metavar="true|false",
            type=_boolean,
            nargs="?",
            const=True,
            default=True,
            help="save the optimizer's state too (default: true)",
        )
        add("resume_from", metavar="PATH", help="a step directory, a run directory, or 'latest'")
        add(
            "checkpoint_format",
            metavar="NAME",
            type=_format_name,
            default="statedict",
            help="the format of the files (default: statedict)",
        )
        add(
            "format_option",
            metavar="KEY=VALUE",
            type=_pair,
            action="append",
            default=[],
            help="an option of the format (repeatable)",
        )
        add("use_llmc_checkpoint_io", nargs="?", action=_Gone, help=argparse.SUPPRESS)

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> CheckpointOptions:
        """Return the options that a parser with `add_arguments` has read; raises as the class does."""
        return cls(
            checkpoint_dir=args.checkpoint_dir,
            save_steps=args.save_steps,
            max_checkpoint_keep=args.max_checkpoint_keep,
            save_optimizer_state=args.save_optimizer_state,
            resume_from=args.resume_from,
            checkpoint_format=args.checkpoint_format,
            format_options=dict(args.format_option),
        )


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _format_name(text: str) -> str:
    try:
        return registry().require(text).name
    except CkptError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


class _Gone(argparse.Action):
    """Answers a switch that is no more."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> NoReturn:
        parser.error(
            "--use_llmc_checkpoint_io is gone: --checkpoint_format replaced it "
            "(llmc for llm.c's model files, statedict for InfiniTrain's native ones)"
        )
