"""The groups of cases of `bench_convert`: pairs of formats, 16 bits and blocks, and layouts."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from timed import CAST, COPIED, COPIED_ZIP, REORDERED, TRANSPOSED, Bench, Kind

__all__ = ["FORMATS", "add_layouts", "add_narrow", "add_pairs", "make_first"]

FORMATS = {
    "llmc": ".bin",
    "statedict": ".ckpt",
    "msgpack": ".msgpack",
    "safetensors": ".safetensors",
    "torch": ".pt",
    "npz": ".npz",
    "gguf": ".gguf",
}
_ZIPS = ("torch", "npz")
_FIRST = "llmc"
_LLMC, _GGUF = Kind(".bin", "llmc"), Kind(".gguf", "gguf", "gguf")
_HF, _HF_FOLDER = Kind(".safetensors", "safetensors", "hf"), Kind("/", "safetensors", "hf")


def make_first(bench: Bench, gib: float) -> None:
    """Make the GPT-2 that the others are made of."""
    bench.make(_FIRST, _LLMC, "make_gpt2", gib)


def add_pairs(bench: Bench, formats: Sequence[str]) -> None:
    """Add each pair of formats, warm and as a command; casts to bf16; and libraries that load and save."""
    for name in formats:
        if name != _FIRST:
            bench.derive(name, Kind(FORMATS[name], name), _FIRST)
    for source in formats:
        for wanted in formats:
            bar = COPIED_ZIP if wanted in _ZIPS else COPIED
            bench.time(source, wanted, bar)
            bench.time_command(source, wanted, bar)
    for wanted in formats:
        bench.time(_FIRST, wanted, CAST, "bf16")
    for peer in _peers():
        bench.time_peer(peer, _FIRST, "load_and_save", f"{peer}: load, save, fsync")


def add_narrow(bench: Bench, gib: float) -> None:
    """Add 16-bit tensors between safetensors and GGUF, and quantised blocks from GGUF to GGUF."""
    for dtype in ("bf16", "f16"):
        plain, other = f"{dtype} safetensors", f"{dtype} gguf"
        bench.make(plain, Kind(".safetensors", "safetensors"), "make_safetensors", gib, dtype.upper())
        bench.derive(other, Kind(".gguf", "gguf"), plain)
        bench.time(plain, other, COPIED)
        bench.time(other, plain, COPIED)
        bench.time(other, other, COPIED)
    if importlib.util.find_spec("gguf") is None:
        print("no quantised blocks: the package gguf is not there", file=sys.stderr)
        return
    blocks = "q8_0 gguf"
    bench.make(blocks, Kind(".gguf", "gguf"), "make_gguf", gib)
    bench.time(blocks, blocks, COPIED)


def add_layouts(bench: Bench, gib: float) -> None:
    """Add what is only renamed, split or joined by rows; what is transposed; and what is reordered."""
    bench.derive("gpt2 gguf", _GGUF, _FIRST)
    bench.derive("gpt2 hf", _HF, _FIRST)
    bench.derive("gpt2 hf folder", _HF_FOLDER, _FIRST)
    bench.make("llama llmc", _LLMC, "make_llama3", gib)
    bench.derive("llama gguf", _GGUF, "llama llmc")
    bench.derive("llama hf folder", _HF_FOLDER, "llama llmc")
    for one, other, bar in (
        (_FIRST, "gpt2 gguf", COPIED),
        ("llama llmc", "llama gguf", COPIED),
        (_FIRST, "gpt2 hf", TRANSPOSED),
        (_FIRST, "gpt2 hf folder", TRANSPOSED),
        ("gpt2 gguf", "gpt2 hf folder", TRANSPOSED),
        ("llama llmc", "llama hf folder", REORDERED),
        ("llama gguf", "llama hf folder", REORDERED),
    ):
        bench.time(one, other, bar)
        bench.time(other, one, bar)
    for peer in _peers():
        label = f"{peer}: load, transpose, save, fsync"
        bench.time_peer(peer, _FIRST, "load_transpose_and_save", label)


def _peers() -> list[str]:
    return [peer for peer in ("safetensors", "torch") if importlib.util.find_spec(peer)]
