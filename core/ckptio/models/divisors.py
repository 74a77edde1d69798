"""The tensor ``rope_freqs.weight`` of llama.cpp, made of the hyperparameters and turned back into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckptio.adapters import Annotated, select
from ckptio.checkpoint import Checkpoint, TensorSpec
from ckptio.dtypes import DType
from ckptio.errors import Problem
from ckptio.models.config import normalise_config
from ckptio.models.rope_scaling import LLAMA31, rope_divisors, scaling_of, scaling_that_makes
from ckptio.transforms import Added

__all__ = ["add_divisors", "drop_divisors"]

_LARGEST_HEAD = 1 << 20


def add_divisors(
    checkpoint: Checkpoint,
    name: str,
    sizes: Mapping[str, int],
    added: dict[str, str],
    problems: list[Problem],
) -> Checkpoint:
    """Add the divisors where the config says LLaMA 3's scaling, and say so in ``added``."""
    config = _config(checkpoint)
    theta, scaling = scaling_of(config)
    if scaling is None or name in checkpoint:
        return checkpoint
    wanting = {"n_head": config.get("n_head"), "rope_theta": theta}
    missing = [key for key, value in wanting.items() if value is None]
    if missing or theta is None:
        problems += [
            Problem(f"config.{key}", f"{name} is made of it; pass --config {key}=…") for key in missing
        ]
        return checkpoint
    rows = sizes["n_embd"] // config["n_head"]
    data = rope_divisors(theta, rows, scaling).tobytes()
    added[name] = f"made of the rotary scaling by {scaling['factor']:g} that the config says"

    def chunks(max_bytes: int) -> Iterator[memoryview]:
        step = max(1, max_bytes // DType.F32.itemsize) * DType.F32.itemsize
        return (memoryview(data)[start : start + step] for start in range(0, len(data), step))

    return Added(checkpoint, {name: (TensorSpec(name, DType.F32, (rows // 2,)), chunks)})


def drop_divisors(
    checkpoint: Checkpoint,
    name: str,
    sizes: Mapping[str, int],
    derived: dict[str, str],
    problems: list[Problem],
) -> Checkpoint:
    """Turn the divisors, if there are some, into hyperparameters that make them; ``derived`` says so.

    Without them, nothing is scaled.
    """
    config = _config(checkpoint)
    if name not in checkpoint:
        said_nothing = not {"use_scaled_rope", "rope_scaling"} & config.keys()
        return _configured(checkpoint, {**config, "use_scaled_rope": False}) if said_nothing else checkpoint
    if "n_head" not in config:
        return checkpoint
    theta, said = scaling_of(config)
    if theta is None:
        problems.append(Problem("config.rope_theta", f"{name} depends on it; pass --config rope_theta=…"))
        return checkpoint
    spec = checkpoint.specs[checkpoint.canonical(name)]
    rows = sizes["n_embd"] // config["n_head"]
    if spec.shape != (rows // 2,) or not spec.dtype.is_float or rows > _LARGEST_HEAD:
        what = f"{spec.dtype.value} of shape {spec.shape}, but heads of {rows} rows have {rows // 2} divisors"
        problems.append(Problem(name, what))
        return checkpoint
    scaling = scaling_that_makes(checkpoint.read(name).astype("f4"), theta, said)
    if scaling is None or (said is not None and scaling != said):
        whose = "no scaling of LLaMA 3 makes" if scaling is None else "that of the config does not make"
        what = f"{whose} these divisors for rope_theta {theta:g}"
        problems.append(Problem(name, what))
        return checkpoint
    derived[name] = f"follows from the rotary scaling by {scaling['factor']:g}, which is in the config now"
    kept = select(checkpoint, [each for each in checkpoint if each != name])
    return _configured(kept, {**config, **_spelled(scaling)})


def _spelled(scaling: Mapping[str, float]) -> dict[str, Any]:
    """Return a scaling as a config spells it: LLaMA 3.1's own has a name."""
    if scaling == LLAMA31:
        return {"use_scaled_rope": True}
    return {"rope_scaling": {"rope_type": "llama3", **scaling}}


def _configured(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Checkpoint:
    return Annotated(checkpoint, metadata={**checkpoint.metadata, "config": config})


def _config(checkpoint: Checkpoint) -> dict[str, Any]:
    return normalise_config(checkpoint.metadata.get("config") or {})
