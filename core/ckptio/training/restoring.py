"""Putting a complete step back: everything is held against it first, then everything is loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ckptio.checkpoint import Checkpoint
from ckptio.errors import CorruptCheckpointError, Problem, UnsupportedError
from ckptio.reading import open as open_checkpoint
from ckptio.trainer_file import STATE_FILE, read_document
from ckptio.training.holders import put_state, read_tensor, state_of
from ckptio.training.models import completed, flat_state, load_model, model_differences
from ckptio.training.notes import Notes
from ckptio.training.optimizers import optimizer_differences, put_optimizer, tensor_names
from ckptio.training.steps import Step
from ckptio.training.trees import unpack, unpack_plain

__all__ = ["Restoration"]


class Restoration:
    """One step directory, its files open, on its way back into a model; close it afterwards."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._open = contextlib.ExitStack()
        self._files: dict[str, Checkpoint] = {}
        states = read_document(step.path / STATE_FILE).get("states")
        self._states: Mapping[str, Any] = states if isinstance(states, dict) else {}
        self._values, self._ties = self._model_state()
        self._lacking: set[str] = set()

    def close(self) -> None:
        self._open.close()

    def check(
        self, model: Any, optimizer: Any, extra: Mapping[str, Any], without: Collection[str], say: Notes
    ) -> None:
        """Raise `UnsupportedError` with every difference; go on ``without`` what is named there."""
        names = set(flat_state(state_of(model, "the model"))[0])
        self._files["model"] = completed(self._file("model"), names)
        problems = model_differences(model, self._files["model"], self._ties, untied="ties" in without)
        for name, its_problems in {
            **({"optimizer": self._optimizer_problems(optimizer, model)} if optimizer is not None else {}),
            **{name: self._extra_problems(name) for name in extra},
        }.items():
            word = "optimizer" if name == "optimizer" else "extra"
            if its_problems and word in without:
                self._lacking.add(name)
                say(f"going on without the saved state of {name}: {its_problems[0]}")
            else:
                problems += its_problems
        if problems:
            raise UnsupportedError(f"{self._step.path} does not fit; nothing was loaded", problems)
        self._say_what_is_left(optimizer, extra, say)

    def restore(self, model: Any, optimizer: Any, extra: Mapping[str, Any]) -> None:
        """Load everything that `check` has passed."""
        load_model(model, self._files["model"], self._values)
        if optimizer is not None and "optimizer" not in self._lacking:
            put_optimizer(optimizer, model, self._unpacked("optimizer", self._states["optimizer"]))
        for name, holder in extra.items():
            if name not in self._lacking:
                put_state(holder, self._unpacked(name, self._states["extra"][name]), name)

    def _model_state(self) -> tuple[dict[str, Any], dict[str, str] | None]:
        match self._states.get("model"):
            case None:
                return {}, None
            case {"values": dict(values), "ties": dict(ties)}:
                with self._blamed("model"):
                    return unpack_plain(values), {str(alias): str(name) for alias, name in ties.items()}
        raise CorruptCheckpointError("no state of a model", path=self._state_path)

    def _optimizer_problems(self, optimizer: Any, model: Any) -> list[Problem]:
        tree = self._states.get("optimizer")
        if tree is None and "optimizer" in self._step.files:
            first = next(iter(self._file("optimizer").specs), "nothing")
            what = f"saved by another program, not by the names of the parameters ({first}, …)"
            return [Problem("optimizer", f"{what}; {_without('optimizer')}")]
        if tree is None:
            what = "the checkpoint was saved without its state"
            hint = f"{_without('optimizer')} or --save_optimizer_state false"
            return [Problem("optimizer", f"{what}; {hint}")]
        problems = self._tree_problems("optimizer", tree)
        saved_type = self._step.state.optimizer_type if self._step.state is not None else None
        own_type = type(optimizer).__name__
        if saved_type not in (None, own_type):
            problems.append(Problem("optimizer", f"{own_type} here, {saved_type} in the checkpoint"))
        if problems:
            return problems
        specs = self._file("optimizer").specs if tensor_names(tree) else {}
        return [
            Problem(f"optimizer: {each.where}", each.what)
            for each in optimizer_differences(optimizer, model, tree, specs)
        ]

    def _extra_problems(self, name: str) -> list[Problem]:
        saved = self._states.get("extra")
        if not isinstance(saved, dict) or name not in saved:
            return [Problem(name, f"this extra state is not in the checkpoint; {_without('extra')}")]
        return self._tree_problems(name, saved[name])

    def _tree_problems(self, part: str, tree: Any) -> list[Problem]:
        """Return the tensors that a packed state speaks of and its file does not have."""
        with self._blamed(part):
            names = tensor_names(tree)
        if not names:
            return []
        if part not in self._step.files:
            return [Problem(part, "its file is missing")]
        return [Problem(part, f"{name} is not in its file") for name in names if name not in self._file(part)]

    def _say_what_is_left(self, optimizer: Any, extra: Mapping[str, Any], say: Notes) -> None:
        saved = self._states.get("extra")
        left = [name for name in saved if name not in extra] if isinstance(saved, dict) else []
        if optimizer is None and ("optimizer" in self._states or "optimizer" in self._step.files):
            left.append("optimizer")
        if left:
            say(f"{self._step.path}: not restored, being asked for by nobody: {', '.join(sorted(left))}")

    def _unpacked(self, part: str, tree: Any) -> Any:
        with self._blamed(part):
            return unpack(tree, lambda name, of_torch: read_tensor(self._file(part), name, of_torch))

    def _file(self, part: str) -> Checkpoint:
        if part not in self._files:
            path, kind = self._step.files[part]
            self._files[part] = self._open.enter_context(open_checkpoint(path, checkpoint_format=kind))
        return self._files[part]

    @property
    def _state_path(self) -> Path:
        return self._step.path / STATE_FILE

    @contextlib.contextmanager
    def _blamed(self, part: str) -> Any:
        """Turn a state that is no packed one into an error that names its file."""
        try:
            yield
        except ValueError as error:
            if isinstance(error, CorruptCheckpointError | UnsupportedError):
                raise
            raise CorruptCheckpointError(f"the state of {part}: {error}", path=self._state_path) from None


def _without(word: str) -> str:
    return f"allow={{{word!r}}} goes on without it"
