"""M5: rows that are no multiple of a quantised block, for every quantiser and every architecture."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader

import ckptio
from ckptio.cli import main
from ckptio.registry import registry
from independent_layouts import LAYOUTS, Arrays, Sizes, model

KINDS = next(
    option.choices or () for option in registry().load("gguf").write_options if option.name == "quantize"
)
CASES = [(architecture, kind) for architecture in LAYOUTS for kind in KINDS]


def blocks(kind: str) -> tuple[GGMLQuantizationType, int]:
    number = GGMLQuantizationType[kind.upper()]
    return number, gguf.GGML_QUANT_SIZES[number][0]


def model_for(architecture: str, kind: str) -> tuple[Sizes, Arrays]:
    """Return a model of which some rows are whole blocks and others are not, as llama.cpp has it."""
    _, block = blocks(kind)
    width = block // 4 if architecture == "gpt2" else block + 8
    sizes = Sizes(4, 2, n_embd=width, n_ffn=block, vocab=5, block=3, n_layer=1)
    arrays = model(architecture, "gguf", sizes, tied=False)
    # Small values: the scales of the blocks are f16.
    return sizes, {name: array / np.float32(65536) for name, array in arrays.items()}


def matrices(arrays: Arrays, block: int) -> tuple[list[str], list[str]]:
    """Return the matrices whose rows are whole blocks, and the others; positions are no such matrix."""
    names = [name for name, array in arrays.items() if array.ndim > 1 and not name.startswith("position")]
    whole = [name for name in names if arrays[name].shape[1] % block == 0]
    return whole, [name for name in names if name not in whole]


@pytest.mark.parametrize(("architecture", "kind"), CASES)
def test_m5_rows_that_are_no_whole_blocks_are_refused_or_named(
    architecture: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number, block = blocks(kind)
    sizes, arrays = model_for(architecture, kind)
    whole, others = matrices(arrays, block)
    assert whole
    assert len(others) > 3
    ckptio.save(arrays, tmp_path / "in.ckpt")
    before = set(tmp_path.iterdir())
    target = tmp_path / "a.gguf"
    ask = ["convert", str(tmp_path / "in.ckpt"), str(target), "--layout=gguf", "-o", f"quantize={kind}"]
    ask += [f"--config={key}={value}" for key, value in sizes.config.items()]
    assert main(ask) == 1
    said = capsys.readouterr().err
    why = f"are no multiple of the {block} of {kind.upper()}; it stays f32"
    reasons = [f"{name}: rows of {arrays[name].shape[1]} {why}" for name in others]
    listed = [line.strip().partition(" (")[0] for line in said.splitlines() if line.startswith("  ")]
    assert listed == reasons
    assert "--allow fallback" in said
    assert set(tmp_path.iterdir()) == before

    assert main([*ask, "--allow=fallback"]) == 0
    output = capsys.readouterr()
    assert all(reason in output.out + output.err for reason in reasons)
    found = {each.name: each for each in GGUFReader(target).tensors}
    for name in whole:
        assert found[name].tensor_type is number
        assert found[name].data.tobytes() == gguf.quants.quantize(arrays[name], number).tobytes()
    for name in found.keys() - set(whole):
        assert found[name].tensor_type is GGMLQuantizationType.F32
        assert found[name].data.tobytes() == arrays[name].tobytes()
    assert found.keys() >= {*whole, *others}
