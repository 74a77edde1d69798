"""`TrainerState`: where a training run stands, and ``trainer_state.json``, in which it says so.

The file is valid JSON. What JSON does not have is written as `ckptio.leaves` does: an infinite or
undefined number is ``{"$float": "inf"}``. `ckptio.trainer_file` reads it, and older kinds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptio.errors import CorruptCheckpointError, OptionError
from ckptio.training.trees import pack_plain, unpack_plain

__all__ = ["TrainerState"]

_BATCHES = ("consumed_batches", "consumed_micro_batches", "data_batch_idx")
"""Historical names of the data position, counted in batches of a size that the file does not say."""
_SAMPLES = ("consumed_samples", "consumed_train_samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """Where a run stands after ``global_step`` finished steps.

    ``consumed_samples`` is the position in the data: samples, because a count of batches is wrong as soon
    as the batch size changes. ``last_lr``, ``last_loss`` and ``best_loss`` are kept to the last bit.
    ``config`` has the model's hyperparameters in the spelling of `ckptio.models.normalise_config`;
    ``data_seed`` is that of the data's order. `ckptio.training.save_checkpoint` fills in
    ``optimizer_type``, ``checkpoint_format`` and ``random`` (the states of the random generators).

    ``consumed_batches`` is only set while a historical file's count of batches has not been turned into
    samples. ``unknown`` has the keys of the file that mean nothing to us; they are written again.
    """

    global_step: int = 0
    consumed_samples: int = 0
    last_lr: float | None = None
    last_loss: float | None = None
    best_loss: float = math.inf
    optimizer_type: str | None = None
    checkpoint_format: str | None = None
    ddp_size: int = 1
    tp_size: int = 1
    sp_size: int = 1
    pp_size: int = 1
    data_seed: int | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    random: Mapping[str, Any] | None = None
    consumed_batches: int | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def batches(self, batch_size: int) -> int:
        """Return the whole batches of ``batch_size`` samples that have been consumed."""
        return self.consumed_samples // batch_size

    def with_batch_size(self, batch_size: int | None) -> TrainerState:
        """Turn a historical count of batches of ``batch_size`` samples into samples.

        Raises `OptionError` where that is needed and no size is given: going on from sample 0 would
        show the model the same data again.
        """
        if self.consumed_batches is None:
            return self
        if batch_size is None:
            raise OptionError(
                f"the checkpoint says that {self.consumed_batches} batches were consumed, but not of how "
                "many samples; pass saved_batch_size=, the batch size of the run that saved it"
            )
        samples = self.consumed_batches * batch_size
        return dataclasses.replace(self, consumed_samples=samples, consumed_batches=None)

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``trainer_state.json`` is, without the states of model and optimizer.

        Raises `OptionError` for a value that `from_json` would refuse.
        """
        own = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        unknown = own.pop("unknown")
        if own["consumed_batches"] is None:
            del own["consumed_batches"]
        else:
            del own["consumed_samples"]
        own["last_lr"], own["last_loss"] = map(_number, (own["last_lr"], own["last_loss"]))
        packed = {key: pack_plain(value, key) for key, value in own.items()}
        for key, value in packed.items():
            problem = _kind_problem(key, unpack_plain(value))
            if problem:
                raise OptionError(f"{key} is {own[key]!r}: {problem} is expected")
        return {**packed, **unknown}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], path: Path | None = None) -> TrainerState:
        """Return the state that a parsed ``trainer_state.json`` says, by any of its historical names.

        Raises `CorruptCheckpointError` for a value of the wrong kind.
        """
        known = {each.name for each in dataclasses.fields(cls)} - {"unknown", "consumed_batches"}
        values: dict[str, Any] = {}
        unknown: dict[str, Any] = {}
        for key, value in document.items():
            if key in known:
                try:
                    values[key] = unpack_plain(value)
                except ValueError as error:
                    raise CorruptCheckpointError(f"{key}: {error}", path=path) from None
            elif key not in (*_SAMPLES, *_BATCHES, "states"):
                unknown[key] = value
        position = next((key for key in (*_SAMPLES, *_BATCHES) if key in document), None)
        if position is not None:
            field_name = "consumed_samples" if position in _SAMPLES else "consumed_batches"
            values[field_name] = document[position]
        for key, value in values.items():
            problem = _kind_problem(key, value)
            if problem:
                raise CorruptCheckpointError(f"{key} is {value!r}: {problem} is expected", path=path)
        if "global_step" not in values:
            raise CorruptCheckpointError("global_step is missing", path=path)
        return cls(**values, unknown=unknown)


def _number(value: Any) -> float | None:
    # Such as a 0-d array or tensor.
    return None if value is None else float(value)


_COUNTS = {"global_step", "consumed_samples", "consumed_batches", "ddp_size", "tp_size", "sp_size", "pp_size"}
_MOST = 10**18
_TEXTS = {"optimizer_type", "checkpoint_format"}


def _kind_problem(key: str, value: Any) -> str | None:
    """Return what is expected instead of ``value``, or None when it will do."""
    if key in _COUNTS:
        sound = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST
        return None if sound else "a whole number from 0 up, of 18 digits at most,"
    if key == "best_loss":
        return None if _is_number(value) else "a number"
    if key in ("last_lr", "last_loss"):
        return None if value is None or _is_number(value) else "a number"
    if key == "data_seed":
        return None if value is None or (isinstance(value, int) and not isinstance(value, bool)) else "an int"
    if key in _TEXTS:
        return None if value is None or isinstance(value, str) else "text"
    return None if isinstance(value, Mapping) or (key == "random" and value is None) else "a map"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
