"""Golden llm.c models with their truths, and small helpers to open, check and write with the plugin."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ckptio import Checkpoint, MemoryCheckpoint, Output
from ckptio_llmc.format import LlmcFormat
from golden import GOLDEN, all_golden

Array = npt.NDArray[Any]

FORMAT = LlmcFormat()
MODELS = [
    path
    for path in (*all_golden("llmc_gpt2/*.bin"), *all_golden("llmc_llama3/*.bin"))
    if "debug_state" not in path.name
]
STATE_MODELS = sorted(GOLDEN.glob("llmc_state/*/model_*.bin"))
_LAYOUTS = {"masterlayout": "master", "branchlayout": "branch", "infinitrainheader": "infinitrain"}


def layout_of(path: Path) -> str:
    """Return which of the four headers a golden file has, as its name says."""
    return next((layout for part, layout in _LAYOUTS.items() if part in path.name), "gpt2")


def truth(path: Path) -> dict[str, Array]:
    """Return the state dict in a golden model, in the file's dtype; masks and head included."""
    stem = path.stem.replace("infinitrainheader", "masterlayout")
    with np.load(path.with_name(f"{stem}.truth.npz")) as arrays:
        values = {name: arrays[name] for name in arrays.files}
    if path.stem.endswith("bf16"):
        # The truth is bf16 widened to f32, so that narrowing is exact. A mask is never cast.
        values = {
            name: value if name.endswith(".attn.bias") else value.astype(ml_dtypes.bfloat16)
            for name, value in values.items()
        }
    return values


def words(path: Path, count: int = 256) -> tuple[int, ...]:
    """Return the first int32 words of a file."""
    return struct.unpack(f"<{count}i", path.read_bytes()[: 4 * count])


def patched(data: bytes, changes: Mapping[int, int]) -> bytes:
    """Return a file with some int32 words of its header changed."""
    changed = bytearray(data)
    for word, value in changes.items():
        struct.pack_into("<i", changed, 4 * word, value)
    return bytes(changed)


def bits(value: float) -> int:
    """Return the bits of a float32 as an int32."""
    return int(np.float32(value).view(np.int32))


def config_of(path: Path) -> dict[str, Any]:
    """Return the whole hyperparameters of a golden model, by the JSON that llm.c's own script left."""
    stem = path.stem.replace("infinitrainheader", "masterlayout")
    record = json.loads(path.with_name(f"{stem}.header.json").read_text())
    if "config" not in record:
        return {"n_head": record["fields"]["n_head"]}
    unused = ("use_kv", "tied_embeddings")
    # norm_eps is in some of the records only; the float headers have 1e-5 where it is not.
    return {"norm_eps": 1e-5} | {key: value for key, value in record["config"].items() if key not in unused}


def problems(checkpoint: Checkpoint, layout: str | None = None) -> list[str]:
    """Return what the plugin says against writing a checkpoint, as text."""
    return [str(problem) for problem in FORMAT.check(checkpoint, {"layout": layout})]


def written(checkpoint: Checkpoint, folder: Path, layout: str | None = None) -> bytes:
    """Return the bytes of the file that the plugin makes of a checkpoint, which it must not refuse."""
    assert problems(checkpoint, layout) == []
    target = folder / "written.bin"
    with Output(target, overwrite=True) as out:
        FORMAT.write(checkpoint, out, {"layout": layout})
        out.finish()
        out.publish()
    return target.read_bytes()


def gpt2(
    n_layer: int = 2, n_embd: int = 8, vocab: int = 5, block: int = 4, skip: Iterable[str] = ()
) -> dict[str, Array]:
    """Return a small GPT-2 as llm.c's state dict has it: masks, and the head beside the embedding."""
    random = np.random.default_rng(7)
    width = {"ln_1": (n_embd,), "ln_2": (n_embd,), "attn.c_attn": (3 * n_embd, n_embd)}
    width |= {
        "attn.c_proj": (n_embd, n_embd),
        "mlp.c_fc": (4 * n_embd, n_embd),
        "mlp.c_proj": (n_embd, 4 * n_embd),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (vocab, n_embd),
        "transformer.wpe.weight": (block, n_embd),
        "transformer.ln_f.weight": (n_embd,),
        "transformer.ln_f.bias": (n_embd,),
    }
    for layer in range(n_layer):
        for part, shape in width.items():
            shapes[f"transformer.h.{layer}.{part}.weight"] = shape
            shapes[f"transformer.h.{layer}.{part}.bias"] = shape[:1]
    tensors: dict[str, Array] = {
        name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()
    }
    for layer in range(n_layer):
        tensors[f"transformer.h.{layer}.attn.bias"] = np.tri(block, dtype=np.float32).reshape(
            1, 1, block, block
        )
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].copy()
    return {name: value for name, value in tensors.items() if name not in set(skip)}


def memory(tensors: Mapping[str, Array], **config: Any) -> MemoryCheckpoint:
    """Return a checkpoint in memory, with a config."""
    return MemoryCheckpoint(tensors, metadata={"config": config})
