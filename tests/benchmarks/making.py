"""The models of `bench_convert`, laid out here by hand, or written by the format's own library.

They are made in a process of their own: each function takes the path of a new file.
"""

from __future__ import annotations

import json
import os
import struct
from typing import BinaryIO

import numpy as np

from measuring import fsync

_WIDTH, _HEADS, _KV_HEADS = 1024, 16, 4
_VALUES = 1 << 20
_ROW = 4096


def warm_up() -> None:
    """Nothing beyond the imports."""


def make_gpt2(path: str, gib: float) -> None:
    """Write a GPT-2 of so many GiB in llm.c's layout, in f32: a header and random values."""
    block, vocab, padded = 1024, 50257, 50304
    rest, layer = (padded + block) * _WIDTH + 2 * _WIDTH, 12 * _WIDTH * _WIDTH + 13 * _WIDTH
    layers = _layers(gib, rest, layer)
    with open(path, "wb") as file:
        header = (20240326, 3, block, vocab, layers, _HEADS, _WIDTH, padded)
        file.write(struct.pack("<8i", *header).ljust(1024, b"\0"))
        _fill(file, 4 * (rest + layers * layer))
        # The rows of padding are zeros, as an export has them.
        file.seek(1024 + 4 * vocab * _WIDTH)
        file.write(bytes(4 * (padded - vocab) * _WIDTH))
        os.fsync(file.fileno())


def make_llama3(path: str, gib: float) -> None:
    """Write a LLaMA-3 whose queries share keys and values, as InfiniTrain has it."""
    block, vocab, multiple = 2048, 32000, 256
    ffn = -(-(8 * _WIDTH // 3) // multiple) * multiple
    qkv = _WIDTH + 2 * _KV_HEADS * _WIDTH // _HEADS
    rest, layer = 2 * vocab * _WIDTH + _WIDTH, (qkv + _WIDTH + 3 * ffn) * _WIDTH + 2 * _WIDTH
    layers = _layers(gib, rest, layer)
    with open(path, "wb") as file:
        words = (20240803, 3, block, vocab, layers, _HEADS, _KV_HEADS, _WIDTH)
        header = struct.pack("<8ifi2f4i", *words, 1.0, multiple, 1e-5, 500000.0, 0, 4, 3, 1)
        file.write(header.ljust(1024, b"\0"))
        _fill(file, 4 * (rest + layers * layer))
        os.fsync(file.fileno())


def make_safetensors(path: str, gib: float, dtype: str) -> None:
    """Write matrices of 32 MiB of a 16-bit dtype in safetensors: a length, a header, random bits."""
    each = 32 << 20
    count = max(1, round(gib * 2**30 / each))
    header = {
        f"h.{i}.weight": {
            "dtype": dtype,
            "shape": [each // 2 // _ROW, _ROW],
            "data_offsets": [i * each, (i + 1) * each],
        }
        for i in range(count)
    }
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        _fill(file, count * each)
        os.fsync(file.fileno())


def make_gguf(path: str, gib: float) -> None:
    """Write matrices of 32 MiB of blocks of Q8_0, with the package gguf."""
    from gguf import GGMLQuantizationType, GGUFWriter

    row = _ROW // 32 * 34
    blocks = np.random.default_rng(0).integers(0, 256, ((32 << 20) // row, row), np.uint8)
    writer = GGUFWriter(path, "bench")
    for i in range(max(1, round(gib * 2**30 / blocks.nbytes))):
        writer.add_tensor(f"blk.{i}.weight", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fsync(path)


def _layers(gib: float, rest: int, layer: int) -> int:
    return max(1, round((gib * 2**30 / 4 - rest) / layer))


def _fill(file: BinaryIO, size: int) -> None:
    block = np.random.default_rng(0).standard_normal(_VALUES, dtype="<f4").tobytes()
    while size:
        size -= file.write(block[:size])
