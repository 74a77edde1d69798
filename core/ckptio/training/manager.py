"""Save and resume: what a training loop calls."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ckptio.errors import OptionError
from ckptio.training.checking import check_parts
from ckptio.training.gathering import gather
from ckptio.training.leftovers import leftovers, remove_leftovers
from ckptio.training.notes import Notes, speaker
from ckptio.training.options import CheckpointOptions
from ckptio.training.prune import prune_checkpoints
from ckptio.training.random_states import capture_random, restore_random
from ckptio.training.restoring import Restoration
from ckptio.training.state import TrainerState
from ckptio.training.steps import Step, find_step, step_directories, step_name
from ckptio.training.writing import check_directory, write_step

__all__ = ["resume_checkpoint", "save_checkpoint"]

_ALLOWED = ("optimizer", "extra", "ties")


def resume_checkpoint(
    options: CheckpointOptions,
    model: Any,
    optimizer: Any = None,
    *,
    extra: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
    verify: bool = False,
    saved_batch_size: int | None = None,
    notes: Notes | None = None,
) -> TrainerState:
    """Put a run back to where its checkpoint left it, or start it afresh; call it once, before step 1.

    First the options are tried: the directory must take files, and the format must hold what is trained.
    Then model, optimizer, ``extra`` (named states: schedulers, scalers, …) and the random generators come
    back exactly; ties by storage are compared. Nothing is changed unless everything fits.

    ``config`` has the model's hyperparameters. ``allow`` goes on without what a checkpoint lacks:
    ``optimizer``, ``extra``, ``ties``. ``verify`` reads every file against its checksum first.
    ``saved_batch_size`` is only needed for files that count batches (InfiniTrain's). ``notes`` is told what
    was decided; without it, it is logged.

    Raises `UnsupportedError` that lists every difference, `IncompleteCheckpointError`, `OptionError` and
    OSError.
    """
    say = speaker(notes)
    unknown = set(allow) - set(_ALLOWED)
    if unknown:
        raise OptionError(f"allow={sorted(unknown)}: known words are {', '.join(_ALLOWED)}")
    if options.checkpoint_dir is not None:
        check_directory(options.checkpoint_dir)
    step = _step_to_resume(options, verify, say)
    state = TrainerState() if step is None or step.state is None else step.state
    if step is not None and config is not None:
        _say_what_differs(step.path, state.config, config, say)
    state = dataclasses.replace(state, config=dict(config if config is not None else state.config))
    if options.checkpoint_dir is not None:
        check_parts(gather(options, model, optimizer, extra, state.config).parts)
    if step is None:
        return state
    state = state.with_batch_size(saved_batch_size)
    with contextlib.closing(Restoration(step)) as restoration:
        without = {*allow, *(() if options.save_optimizer_state else ("optimizer",))}
        restoration.check(model, optimizer, extra or {}, without, say)
        restoration.restore(model, optimizer, extra or {})
    if state.random is not None:
        restore_random(state.random, say)
    say(f"resumed from {step.path}, step {state.global_step}")
    return state


def save_checkpoint(
    options: CheckpointOptions,
    state: TrainerState,
    model: Any,
    optimizer: Any = None,
    *,
    extra: Mapping[str, Any] | None = None,
    protect: Collection[int | str | os.PathLike[str]] = (),
    notes: Notes | None = None,
) -> Path:
    """Save the step directory of ``state.global_step``, whole or not at all, then prune; return its path.

    The optimizer's type, the format and the states of the random generators are put into the state here.
    ``extra`` are named states (anything with a state dict, a random generator, a dict). ``protect`` are
    steps that pruning leaves, the best one say; the one just saved always stays.

    Raises OSError, `UnsupportedError` and `OptionError`; nothing is pruned then, and the older steps are
    as they were.
    """
    say = speaker(notes)
    directory = options.checkpoint_dir
    if directory is None:
        raise OptionError("there is no checkpoint_dir to save into")
    check_directory(directory)
    gathered = gather(options, model, optimizer, extra, state.config)
    check_parts(gathered.parts)
    state = dataclasses.replace(
        state,
        optimizer_type=type(optimizer).__name__ if optimizer is not None else state.optimizer_type,
        checkpoint_format=options.checkpoint_format,
        random=capture_random(),
    )
    document = {**state.to_json(), "states": gathered.states}
    step = document["global_step"]
    remove_leftovers(directory, say)
    _say_what_is_there(directory, step, say)
    target = directory / step_name(step)
    write_step(target, step, gathered.parts, document)
    prune_checkpoints(directory, options.max_checkpoint_keep, (target, *protect), notes=say)
    return target


def _step_to_resume(options: CheckpointOptions, verify: bool, say: Notes) -> Step | None:
    if options.resume_from is None:
        return None
    if options.resume_from != "latest":
        return find_step(options.resume_from, checksums=verify, notes=say)
    directory = options.checkpoint_dir
    assert directory is not None  # the options have seen to it
    if step_directories(directory):
        return find_step(directory, checksums=verify, notes=say)
    found = leftovers(directory)
    left = f" (left over: {', '.join(each.name for each in found)})" if found else ""
    say(f"{directory}: no complete checkpoint{left}; a fresh start")
    return None


def _say_what_differs(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any], say: Notes) -> None:
    """Name the hyperparameters that changed: a number of heads, say, shows in no shape of a tensor."""
    changed = [
        f"{key} {own[key]!r} here, {saved[key]!r} in the checkpoint"
        for key in saved
        if key in own and own[key] != saved[key]
    ]
    if changed:
        say(f"{path}: the run that was saved had another configuration: {'; '.join(changed)}")


def _say_what_is_there(directory: Path, step: int, say: Notes) -> None:
    numbers = [number for number, _ in step_directories(directory)]
    if step in numbers:
        say(f"{directory}: step {step} is there already and is replaced")
    later = [number for number in numbers if number > step]
    if later:
        say(
            f"{directory}: saving step {step}, but later steps are there ({', '.join(map(str, later))}), of "
            f"another run or from before a restart; --resume_from latest would take step {later[-1]}"
        )
