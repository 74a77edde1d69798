"""Step directories of a training run where a command takes a checkpoint: each of their files in turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptio.cli.diff import as_dict, compare_files, print_comparison
from ckptio.cli.inspect import describe, print_description
from ckptio.cli.text import byte_count, escape, print_json, shortened
from ckptio.cli.verify import check, print_check

if TYPE_CHECKING:
    from ckptio.training import Step

__all__ = ["diff_steps", "inspect_step", "is_step", "verify_step"]

_FORMAT = "checkpoint_format"


def is_step(path: Path) -> bool:
    """Return whether ``path`` is the step directory of a training run, whole or not.

    A directory of shards is none, even with the trainer state of another program beside them. Raises
    `OptionError` for a directory that has nothing but steps in it.
    """
    if not path.is_dir():
        return False
    from ckptio.errors import OptionError
    from ckptio.trainer_file import STATE_FILE
    from ckptio.training.manifest import MANIFEST
    from ckptio.training.steps import FINAL, open_step, step_directories, step_of_name

    if step_of_name(path.name) is not None or path.name == FINAL or (path / MANIFEST).is_file():
        return True
    if (path / STATE_FILE).is_file() and "model" in open_step(path).files:
        return True
    found = step_directories(path)
    if found and not any(each.is_file() for each in path.iterdir()):
        raise OptionError(
            f"{path}: a directory of step directories; name one of them, such as {found[-1][1]}"
        )
    return False


def inspect_step(
    path: Path, options: Mapping[str, str], *, filters: list[str] | None, stats: bool, as_json: bool
) -> None:
    """Show the trainer state and each file of a step directory."""
    from ckptio.training import open_step

    step = open_step(path)
    parts = dict(_described(step, options, filters=filters, stats=stats))
    about = _about(step) | {"state": _state(step), "parts": parts}
    if as_json:
        print_json(about)
        return
    _print_about(about)
    print("  trainer state")
    for key, value in about["state"].items():
        if key not in ("random", "states") and value not in (None, {}):
            print(f"    {escape(key)}: {shortened(json.dumps(value, ensure_ascii=False))}")
    for name, part in parts.items():
        print(f"\n{escape(name)}: ", end="")
        if "error" in part:
            print(escape(part["error"]))
        else:
            print_description(part, stats=stats)


def _described(
    step: Step, options: Mapping[str, str], *, filters: list[str] | None, stats: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each part with what is in it, or with why that cannot be told."""
    from ckptio.errors import CheckpointError, OptionError

    unmatched = []
    for name, (file, kind) in step.files.items():
        try:
            yield name, describe(file, kind, options, filters=filters, stats=stats)
        except (CheckpointError, OSError) as error:
            yield name, {"path": str(file), "error": str(error)}
        except OptionError as error:
            # A name that is sought may be in one of the files only.
            unmatched.append(error)
    if unmatched and len(unmatched) == len(step.files):
        raise unmatched[0]


def verify_step(path: Path, options: Mapping[str, str], *, as_json: bool) -> int:
    """Check a step directory against its manifest, and each file to its last byte; return the exit status."""
    from ckptio.errors import CkptError
    from ckptio.training import open_step

    step = open_step(path, checksums=True)
    parts: dict[str, dict[str, Any]] = {}
    for name, (file, kind) in step.files.items():
        try:
            parts[name] = check(file, kind, options)
        except (CkptError, OSError) as error:
            parts[name] = {"path": str(file), "ok": False, "problems": [str(error)]}
    about = _about(step) | {"parts": parts}
    about["ok"] = step.problem is None and all(part["ok"] for part in parts.values())
    if as_json:
        print_json(about)
        return int(not about["ok"])
    _print_about(about)
    for part in parts.values():
        if "format" in part:
            print_check(part, checksummed=step.manifest is not None and step.problem is None)
        else:
            print(f"{escape(part['path'])}: NOT whole\n  problem: {escape(part['problems'][0])}")
    return int(not about["ok"])


def diff_steps(paths: tuple[Path, Path], *, atol: float | None, rtol: float | None, as_json: bool) -> int:
    """Compare two step directories, part by part, and their trainer states; return the exit status."""
    from ckptio.training import find_step

    one, other = find_step(paths[0]), find_step(paths[1])
    found = {}
    for name in (name for name in one.files if name in other.files):
        (file, kind), (other_file, other_kind) = one.files[name], other.files[name]
        compared = compare_files((file, other_file), (kind, other_kind), atol=atol, rtol=rtol)
        found[name] = compared[0]
        if not as_json:
            print_comparison(compared[0], (str(file), str(other_file)), compared[1])
    states = _state(one), _state(other)
    keys = [key for key in {**states[0], **states[1]} if states[0].get(key) != states[1].get(key)]
    about: dict[str, Any] = {
        "parts": {name: as_dict(each) for name, each in found.items()},
        "parts_only_in_a": [name for name in one.files if name not in found],
        "parts_only_in_b": [name for name in other.files if name not in found],
        "state": {key: {"a": states[0].get(key), "b": states[1].get(key)} for key in keys},
    }
    alone = about["parts_only_in_a"] + about["parts_only_in_b"]
    equal = not alone and not set(keys) - {_FORMAT} and all(each.equal for each in found.values())
    if as_json:
        print_json({"equal": equal} | about)
    else:
        for line in _lines(about):
            print(escape(line))
        print(escape(f"{'equal' if equal else 'different'}: {paths[0]} and {paths[1]}"))
    return int(not equal)


def _lines(about: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"- part {name}" for name in about["parts_only_in_a"])
    yield from (f"+ part {name}" for name in about["parts_only_in_b"])
    for key, sides in about["state"].items():
        values = " -> ".join(shortened(json.dumps(sides[side])) for side in ("a", "b"))
        yield f"~ state {key}: {values}{' (does not count)' if key == _FORMAT else ''}"


def _about(step: Step) -> dict[str, Any]:
    return {
        "path": str(step.path),
        "step": step.step,
        "complete": step.problem is None,
        "problem": step.problem,
        "manifest": step.manifest is not None,
        "bytes": step.nbytes,
    }


def _print_about(about: dict[str, Any]) -> None:
    print(f"{escape(about['path'])}: step {about['step']}, {escape(_condition(about))}")
    print(f"  files: {byte_count(about['bytes'])}")


def _condition(about: dict[str, Any]) -> str:
    if about["problem"] is not None:
        return f"NOT complete: {about['problem']}"
    return (
        "complete" if about["manifest"] else "complete; no manifest, so no sizes and checksums to hold it to"
    )


def _state(step: Step) -> dict[str, Any]:
    """Return the trainer state as JSON, with what belongs to the states of optimizer and others."""
    from ckptio.trainer_file import STATE_FILE, read_document

    if step.state is None:
        return {}
    document = read_document(step.path / STATE_FILE)
    return step.state.to_json() | {key: document[key] for key in ("states",) if key in document}
