"""Files of the real program, against a reader that shares no code and against the slices of their source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ckptio
from ckptio_statedict.format import StatedictFormat
from golden import GOLDEN, all_golden, golden, golden_id
from independent import read_ckpt

Array = npt.NDArray[Any]
FORMAT = StatedictFormat()
VOCABULARY = ("transformer.wte.weight", "lm_head.weight")


@pytest.mark.parametrize("path", all_golden("infinitrain/**/*.ckpt"), ids=golden_id)
def test_every_file_equals_what_the_independent_reader_sees(path: Path) -> None:
    expected = read_ckpt(path)
    assert expected
    with FORMAT.open(path, {}) as checkpoint:
        assert list(checkpoint.specs) == list(expected)
        assert not checkpoint.aliases
        assert not checkpoint.leaves
        assert not checkpoint.metadata
        for name, (kind, shape, data) in expected.items():
            spec = checkpoint.specs[name]
            assert (spec.name, spec.dtype.value, spec.shape) == (name, kind, shape)
            assert b"".join(checkpoint.chunks(name, 1000)) == data
            array = checkpoint.read(name)
            assert array.shape == shape
            assert array.tobytes() == data


def test_the_adam_step_is_a_0d_integer() -> None:
    path = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/optimizer.ckpt")
    with FORMAT.open(path, {}) as checkpoint:
        step = checkpoint.read("adam.t")
        assert (step.dtype, step.shape, int(step)) == (np.dtype("<i8"), (), 2)


@pytest.mark.parametrize("path", all_golden("infinitrain/sharded/*/shard_info.json"), ids=golden_id)
def test_every_shard_is_the_slice_of_its_source(path: Path) -> None:
    info = json.loads(path.read_text())
    source = truth_of(info["source_bin"])
    ranks = info["tp"] * info["dp"] * info["pp"]
    (step,) = path.parent.glob("checkpoint_step_*")
    for rank in range(ranks):
        folder = step / f"rank_{rank:06d}" if ranks > 1 else step
        expected = shard(source, info, rank)
        with FORMAT.open(folder / "model.ckpt", {}) as checkpoint:
            assert sorted(checkpoint.names()) == sorted(expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(checkpoint.read(name), array, err_msg=name, strict=True)


def truth_of(source: str) -> dict[str, Array]:
    """Return the arrays of a source file; a synthesised header has the truth of the file it was made of."""
    path = (GOLDEN / source).with_suffix(".truth.npz")
    if not path.exists():
        header = json.loads((GOLDEN / source).with_suffix(".header.json").read_text())
        path = path.with_name(header["truth"])
    with np.load(path) as truth:
        return dict(truth)


def shard(source: dict[str, Array], info: dict[str, Any], rank: int) -> dict[str, Array]:
    """Return what a rank holds: TP fastest, then DP, then PP."""
    tp, dp, pp = info["tp"], info["dp"], info["pp"]
    vocabulary, width = source["transformer.wte.weight"].shape
    if info["kind"] == "gpt2" and tp > 1:
        padding = ((0, -vocabulary % 128), (0, 0))
        source = source | {name: np.pad(source[name], padding) for name in VOCABULARY}
    kept = stage(source, pp, info["vpp"], rank // (tp * dp))
    prefix = "module." if dp > 1 or pp > 1 else ""
    return {prefix + name: part(name, array, tp, rank % tp, width) for name, array in kept.items()}


def stage(source: dict[str, Array], pp: int, vpp: int, index: int) -> dict[str, Array]:
    """Return the tensors of one pipeline stage, its layers numbered from 0."""
    layers = 1 + max(
        int(found[1]) for name in source if (found := re.match(r"transformer\.h\.(\d+)\.", name))
    )
    chunks = pp * vpp
    sizes = [layers // chunks + (chunk < layers % chunks) for chunk in range(chunks)]
    starts = np.cumsum([0, *sizes])
    own = [n for c in range(index, chunks, pp) for n in range(starts[c], starts[c + 1])]
    kept: dict[str, Array] = {}
    for name, array in source.items():
        if found := re.match(r"transformer\.h\.(\d+)\.(.*)", name):
            if int(found[1]) in own:
                kept[f"transformer.h.{own.index(int(found[1]))}.{found[2]}"] = array
        elif (index == 0 and name.startswith(("transformer.wte.", "transformer.wpe."))) or (
            index == pp - 1 and name.startswith(("transformer.ln_f.", "lm_head."))
        ):
            kept[name] = array
    return kept


def part(name: str, array: Array, tp: int, rank: int, width: int) -> Array:
    """Return the slice of one tensor that a tensor-parallel rank holds."""
    if ".attn.c_attn." in name:
        keys = (array.shape[0] - width) // 2
        blocks = np.split(array, [width, width + keys])
        return np.concatenate([np.split(block, tp)[rank] for block in blocks])
    if name in VOCABULARY or ".mlp.c_fc" in name:
        return np.split(array, tp)[rank]
    if name.endswith((".attn.c_proj.weight", ".mlp.c_proj.weight")):
        return np.split(array, tp, axis=1)[rank]
    return array


def test_the_lora_weights_file_is_refused_by_name() -> None:
    with pytest.raises(ckptio.UnsupportedError, match=r"LoRA weights \(lora_weights\.bin\)"):
        FORMAT.open(golden("infinitrain/runs/gpt2_lora/lora_weights.bin"), {})
