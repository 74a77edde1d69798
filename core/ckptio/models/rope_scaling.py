"""LLaMA 3's scaling of the rotary frequencies, and the divisors of each that llama.cpp stores.

A scaling is a map as ``rope_scaling`` of transformers' ``config.json`` is one. A frequency with a wavelength
of more than ``original_max_position_embeddings / low_freq_factor`` tokens is divided by ``factor``, one of
less than ``original_max_position_embeddings / high_freq_factor`` by 1, and one in between by what lies in
between. Source: ``_compute_llama3_parameters`` of transformers, and ``LlamaModel.generate_extra_tensors`` of
llama.cpp's converter, which writes the divisors as ``rope_freqs.weight``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.errors import Problem

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["LLAMA31", "rope_divisors", "rope_from_hf", "scaling_of", "scaling_problems", "scaling_that_makes"]

LLAMA31: Mapping[str, float] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What ``use_scaled_rope`` stands for, in llm.c, InfiniTrain and Meta's own code."""
_PUBLISHED = (8.0, 32.0)
"""The factors of LLaMA 3.1 and 3.2; all else is the same in both."""
_IMPLIED_THETA = 10000.0
"""What transformers takes where its config says nothing."""
_NEAR = 1e-5
"""A relative difference of divisors: that of programs which compute them in f32."""


def scaling_of(config: Mapping[str, Any]) -> tuple[float | None, dict[str, float] | None]:
    """Return the base of the frequencies and the scaling that a config says; None where it says none.

    ``config`` is in the one spelling, or one of transformers whose known keys are.
    """
    said = config.get("rope_parameters") or config.get("rope_scaling")
    said = said if isinstance(said, Mapping) else {}
    implied = _IMPLIED_THETA if "model_type" in config else None
    theta = said.get("rope_theta", config.get("rope_theta", implied))
    theta = theta if _is_positive(theta) else None
    if config.get("use_scaled_rope") is True:
        return theta, dict(LLAMA31)
    scaling = {key: said.get(key, usual) for key, usual in LLAMA31.items()}
    is_llama3 = said.get("rope_type", said.get("type")) == "llama3"
    if not is_llama3 or not all(map(_is_positive, scaling.values())):
        return theta, None
    return theta, scaling if scaling["low_freq_factor"] < scaling["high_freq_factor"] else None


def rope_from_hf(config: Mapping[str, Any], layout: str) -> tuple[dict[str, Any], list[Problem]]:
    """Return ``rope_theta`` and ``use_scaled_rope``, or ``rope_scaling`` where it is not LLaMA 3.1's."""
    found: dict[str, Any] = {}
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if "model_type" not in config:
        return found, []
    if scaling is None:
        return {"use_scaled_rope": False}, []
    if not isinstance(scaling, Mapping):
        return found, [Problem("config.rope_scaling", "no map of hyperparameters")]
    if "rope_theta" in scaling:
        found["rope_theta"] = scaling["rope_theta"]
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    found["use_scaled_rope"] = kind == "llama3"
    differs = [f"{key} {scaling.get(key)!r}" for key, value in LLAMA31.items() if scaling.get(key) != value]
    if kind not in ("default", "llama3"):
        return found, [Problem("config.rope_scaling", f"{kind!r}: 'llama3' alone is known in other layouts")]
    if kind == "llama3" and differs and layout == "gguf" and scaling_of(config)[1]:
        apart = {key: value for key, value in scaling.items() if key != "rope_theta"}
        return {**found, "use_scaled_rope": False, "rope_scaling": apart}, []
    if kind == "llama3" and differs:
        wanted = ", ".join(f"{key} {value:g}" for key, value in LLAMA31.items())
        what = f"{', '.join(differs)}: other programs have LLaMA 3.1's scaling alone ({wanted})"
        return found, [Problem("config.rope_scaling", what)]
    return found, []


def scaling_problems(config: Mapping[str, Any], layout: str) -> list[Problem]:
    """Return what of a config in the one spelling the programs of ``layout`` cannot do with the rotation."""
    if "model_type" in config:
        return []
    problems = []
    if "rope_dimension_count" in config and layout != "gguf":
        what = f"{config['rope_dimension_count']} rows of a head are rotated; other programs rotate all"
        problems.append(Problem("config.rope_dimension_count", what))
    scaling = config.get("rope_scaling")
    if scaling is None or layout == "gguf":
        return problems
    if layout == "hf":
        kind = scaling.get("rope_type") if isinstance(scaling, Mapping) else None
        if kind not in ("llama3", "linear"):
            what = f"{scaling!r}: from other programs it is 'llama3' or 'linear' alone"
            problems.append(Problem("config.rope_scaling", what))
    else:
        wanted = ", ".join(f"{key} {value:g}" for key, value in LLAMA31.items())
        what = f"{scaling!r}: other programs have LLaMA 3.1's scaling alone ({wanted})"
        problems.append(Problem("config.rope_scaling", what))
    return problems


def rope_divisors(theta: float, head_rows: int, scaling: Mapping[str, float]) -> npt.NDArray[np.float32]:
    """Return what each of the ``head_rows / 2`` frequencies of a head is divided by.

    All is computed in f32, in the order of llama.cpp's converter: the values are its own to the last bit.
    """
    f32 = np.float32
    frequencies = f32(1) / f32(theta) ** (np.arange(0, head_rows, 2, dtype=f32) / f32(head_rows))
    turns = f32(scaling["original_max_position_embeddings"]) / (f32(2 * math.pi) / frequencies)
    low, high, factor = (f32(scaling[f"{each}factor"]) for each in ("low_freq_", "high_freq_", ""))
    smooth = (turns - low) / (high - low)
    between = f32(1) / ((f32(1) - smooth) / factor + smooth)
    divisors: npt.NDArray[np.float32] = np.where(turns > high, f32(1), np.where(turns < low, factor, between))
    return divisors


def scaling_that_makes(
    divisors: npt.NDArray[Any], theta: float, said: Mapping[str, float] | None
) -> dict[str, float] | None:
    """Return a scaling that makes ``divisors``: ``said``, a published one, or one of another factor."""
    factors = (*_PUBLISHED, float(divisors.max(initial=1.0)))
    for each in (said, *({**LLAMA31, "factor": factor} for factor in factors)):
        if each is None:
            continue
        made = rope_divisors(theta, 2 * len(divisors), each)
        if np.allclose(made, divisors, rtol=_NEAR, atol=0.0):
            return dict(each)
    return None


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
