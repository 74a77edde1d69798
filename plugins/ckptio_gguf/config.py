"""Hyperparameters as llama.cpp's metadata have them, and as ``metadata["config"]`` spells them.

Source of the keys: ``Keys`` of the package gguf 0.19, and what llama.cpp wants of ``gpt2``, ``llama`` and
``qwen2``. A number of the file is an f32, so 1e-05 is read as the shortest decimal that is that f32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ckptio import Checkpoint, DType, OptionError, Problem
from ckptio.models import Recognised, architecture, normalise_config, recognise
from ckptio.models.config import kv_heads
from ckptio.models.llama3 import DIVISORS
from ckptio.models.reshaping import f32_names
from ckptio.models.rope_scaling import scaling_of

__all__ = [
    "ARCHITECTURE",
    "CONFIG",
    "config_of",
    "is_hyperparameter",
    "model_problems",
    "recognised",
    "with_model",
]

CONFIG = "config"
_LAYOUT = "gguf"
ARCHITECTURE = "general.architecture"
_TOKENIZER = "tokenizer.ggml.model"
_NO_TOKENIZER = {_TOKENIZER: "no_vocab"}
"""What llama.cpp takes for a model whose tokens it is not to turn into text."""
_NAMES = {"gpt2": "gpt2", "llama3": "llama", "qwen2": "qwen2"}
"""Our architectures, and llama.cpp's names of them."""
_COMMON = {
    "n_layer": "block_count",
    "n_embd": "embedding_length",
    "block_size": "context_length",
    "n_head": "attention.head_count",
    "vocab_size": "vocab_size",
}
_ROTARY = {
    "n_kv_head": "attention.head_count_kv",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
_KEYS = {
    "gpt2": {**_COMMON, "norm_eps": "attention.layer_norm_epsilon"},
    "llama": {**_COMMON, **_ROTARY},
    "qwen2": {**_COMMON, **_ROTARY},
}
"""By llama.cpp's architecture, its keys for those of a config."""
_WIDTH = "feed_forward_length"
_KIND = "general.type"
_ROTATED = "rope.dimension_count"
_SCALING = {"factor": "factor", "original_max_position_embeddings": "original_context_length"}
"""transformers' keys of a scaling, and llama.cpp's."""
_GPT2_EPS = 1e-5


def config_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that the metadata of a file say, as far as they are of a known architecture."""
    name = metadata.get(ARCHITECTURE)
    found: dict[str, Any] = {}
    for key, ending in _KEYS.get(name, {}).items() if isinstance(name, str) else ():
        value = metadata.get(f"{name}.{ending}")
        if type(value) is int:
            found[key] = value
        elif type(value) is float:
            found[key] = float(str(_narrow(value)))
    return {**found, **_rotation(metadata, name, found)} if found else found


def _narrow(value: float) -> np.floating[Any]:
    """Return a number as an f32, or as it is where that is beyond all of f32."""
    with np.errstate(over="ignore"):
        narrow = np.float32(value)
    return narrow if np.isfinite(narrow) else np.float64(value)


def _rotation(metadata: Mapping[str, Any], name: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what other programs must know of the rotation: a scaling by metadata, heads rotated in part."""
    said: dict[str, Any] = {}
    kind = metadata.get(f"{name}.rope.scaling.type")
    if kind not in (None, "none"):
        said["rope_scaling"] = {"rope_type": kind} | {
            key: metadata[f"{name}.rope.scaling.{ending}"]
            for key, ending in _SCALING.items()
            if f"{name}.rope.scaling.{ending}" in metadata
        }
    count, width, heads = metadata.get(f"{name}.{_ROTATED}"), config.get("n_embd"), config.get("n_head")
    if type(width) is int and type(heads) is int and heads > 0 and count not in (None, width // heads):
        said["rope_dimension_count"] = count
    return said


def is_hyperparameter(key: str) -> bool:
    """Return whether ``key`` is one of llama.cpp's that `with_model` makes true of the config."""
    name, _, ending = key.partition(".")
    return name in _KEYS and ending in (_WIDTH, *_KEYS[name].values())


def with_model(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the metadata to write: with llama.cpp's keys for what the config and the tensors say.

    What the keys say is no longer in the config; reading finds it again. To a model that has such keys
    already, none is added that its file does without.
    """
    metadata = dict(checkpoint.metadata)
    found = recognised(checkpoint)
    if found is not None:
        metadata.setdefault(ARCHITECTURE, _NAMES[found.architecture])
    name = metadata.get(ARCHITECTURE)
    is_new = f"{name}.{_COMMON['n_layer']}" not in metadata
    config = _config(checkpoint, found if is_new else None)
    if config is None or not isinstance(name, str) or name not in _KEYS:
        return metadata
    said = config_of(metadata)
    for key, ending in _KEYS[name].items():
        if key in config and said.get(key) != config[key]:
            value = config[key]
            metadata[f"{name}.{ending}"] = float(_narrow(value)) if isinstance(value, float) else value
    if found is not None and is_new:
        metadata[f"{name}.{_WIDTH}"] = found.sizes.get("n_ffn", 4 * found.sizes["n_embd"])
        heads = config.get("n_head")
        if name == "llama" and isinstance(heads, int) and heads > 0:
            metadata[f"{name}.{_ROTATED}"] = found.sizes["n_embd"] // heads
        metadata = {_KIND: "model", **_NO_TOKENIZER, **metadata}
    said = config_of(metadata)
    rest = {key: value for key, value in config.items() if said.get(key) != value}
    if rest:
        metadata[CONFIG] = rest
    else:
        metadata.pop(CONFIG, None)
    return metadata


def model_problems(checkpoint: Checkpoint) -> Iterator[Problem]:
    """Yield what llama.cpp needs to know of a model in its layout, and nobody says."""
    found = recognised(checkpoint)
    config = _config(checkpoint, found)
    if found is None or config is None:
        return
    name = _NAMES[found.architecture]
    said = {**config_of({**checkpoint.metadata, ARCHITECTURE: name}), **config}
    for key in _KEYS[name].keys() - said.keys():
        yield Problem(f"config.{key}", f"llama.cpp needs it, and no tensor says it; pass --config {key}=…")
    if scaling_of(config)[1] is not None and DIVISORS not in checkpoint:
        what = (
            f"llama.cpp takes LLaMA 3's scaling from a tensor {DIVISORS}; --layout gguf makes it of a LLaMA"
        )
        yield Problem(
            "config.use_scaled_rope" if "use_scaled_rope" in config else "config.rope_scaling", what
        )
    needed = set(f32_names(architecture(found.architecture), _LAYOUT, found.sizes))
    for spec in checkpoint.specs.values():
        if spec.name in needed and spec.dtype is not DType.F32:
            remedy = "--dtype f32" if spec.dtype is DType.F64 else "--layout gguf"
            what = f"{spec.dtype.value}: llama.cpp takes it as f32 alone; {remedy} makes it so"
            yield Problem(spec.name, what)


def _config(checkpoint: Checkpoint, found: Recognised | None) -> dict[str, Any] | None:
    """Return the config, completed by the sizes of the tensors; None when there is none that is a map."""
    config = checkpoint.metadata.get(CONFIG, {})
    if not isinstance(config, Mapping):
        return None
    config = normalise_config(config)
    if found is None:
        return config
    known = {**config, **{key: found.sizes[key] for key in _COMMON if key in found.sizes}}
    if found.architecture == "gpt2":
        known.setdefault("norm_eps", _GPT2_EPS)
    heads = known.get("n_head")
    if "n_qkv" in found.sizes and isinstance(heads, int) and heads > 0 and known["n_embd"] % heads == 0:
        known.setdefault("n_kv_head", kv_heads(known["n_embd"], heads, found.sizes["n_qkv"]))
    return known


def recognised(checkpoint: Checkpoint) -> Recognised | None:
    """Return what a model in llama.cpp's layout is recognised as, None for anything else."""
    try:
        found = recognise(checkpoint)
    except OptionError:
        return None
    return found if found is not None and _LAYOUT in found.layouts else None
