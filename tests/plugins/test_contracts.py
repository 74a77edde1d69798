"""Every shipped format keeps every promise of the kit that strangers' formats are held to.

The samples are files that the real programs wrote; their truths come from the programs' own libraries,
or from readers that share no code with the plugins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import flax.serialization
import numpy as np
import torch

from ckptio import DType, TensorSpec
from ckptio.testing import FormatContract, Sample, fingerprint, fingerprint_of
from golden import all_golden
from independent import read_ckpt
from independent_safetensors import judge
from llmc_files import MODELS, truth
from torch_trees import raw, tensors

Raw = Mapping[str, tuple[str, tuple[int, ...], bytes]]


def sample(path: Path, found: Raw) -> Sample:
    """Return a file with the dtype, shape and bytes that an independent reader found of each tensor."""
    specs = {name: TensorSpec(name, DType(dtype), shape) for name, (dtype, shape, _) in found.items()}
    return Sample(path, {name: fingerprint_of(specs[name], data) for name, (_, _, data) in found.items()})


def arrays(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of what flax restored, by path; no key of these files needs an escape."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from arrays(value, f"{prefix}{key}/")
        elif isinstance(value, np.ndarray | np.generic):
            yield prefix + key, value


class TestGguf(FormatContract):
    format_name = "gguf"

    def samples(self) -> Iterator[Sample]:
        for path in all_golden("gguf/*.gguf"):
            truth = np.load(path.with_suffix(".truth.npz"))
            # What was before quantisation is there too; bf16 is given widened.
            found = {name: each for name, each in truth.items() if name.startswith("t.")}
            found["t.bf16"] = found["t.bf16"].astype(DType.BF16.numpy)
            yield Sample(path, {name: fingerprint(array) for name, array in found.items()})


class TestLlmc(FormatContract):
    format_name = "llmc"

    def samples(self) -> Iterator[Sample]:
        for path in MODELS:
            # The masks of the truth are in no file.
            found = {name: each for name, each in truth(path).items() if not name.endswith(".attn.bias")}
            yield Sample(path, {name: fingerprint(array) for name, array in found.items()})


class TestMsgpack(FormatContract):
    format_name = "msgpack"

    def samples(self) -> Iterator[Sample]:
        for path in all_golden("flax/*.msgpack"):
            restored = flax.serialization.msgpack_restore(path.read_bytes())
            yield Sample(path, {name: fingerprint(array) for name, array in arrays(restored)})


class TestMsgpackInChunks(FormatContract):
    format_name = "msgpack"
    options: ClassVar[Mapping[str, Any]] = {"chunk_bytes": 100_000}


class TestNpz(FormatContract):
    format_name = "npz"

    def samples(self) -> Iterator[Sample]:
        for path in all_golden("npz/*.npz"):
            with np.load(path, allow_pickle=False) as archive:
                found = {name: each for name, each in archive.items() if each.dtype.kind != "U"}
            hashes = {name: fingerprint(array) for name, array in found.items()}
            yield Sample(path, hashes, {"skip_unknown": True})


class TestSafetensors(FormatContract):
    format_name = "safetensors"

    def samples(self) -> Iterator[Sample]:
        for path in all_golden("safetensors/*.safetensors"):
            found = {}
            for name, (code, shape, data) in judge(path).items():
                found[name] = ("f8_e4m3fn" if code == "F8_E4M3" else code.lower(), shape, data)
            yield sample(path, found)


class TestSafetensorsInShards(FormatContract):
    format_name = "safetensors"
    options: ClassVar[Mapping[str, Any]] = {"max_shard_size": "150"}


class TestStatedict(FormatContract):
    format_name = "statedict"

    def samples(self) -> Iterator[Sample]:
        for path in all_golden("infinitrain/runs/**/*.ckpt"):
            yield sample(path, read_ckpt(path))


class TestTorch(FormatContract):
    format_name = "torch"

    def samples(self) -> Iterator[Sample]:
        for path in [*all_golden("torch/mixed_*.pt"), *all_golden("torch/t*.pt")]:
            found = {}
            for name, each in tensors(torch.load(path, weights_only=True)):
                dtype = DType.parse(str(each.dtype).removeprefix("torch."))
                found[name] = (dtype.value, tuple(each.shape), raw(each))
            yield sample(path, found)
