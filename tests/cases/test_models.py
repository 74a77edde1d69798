"""The mappings of models, M1 to M4: every architecture, every pair of its layouts, every format."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from ckptio import MemoryCheckpoint, UnsupportedError
from ckptio.cli import main
from ckptio.models import apply_layout
from independent import read_ckpt
from independent_layouts import HEADS, LAYOUTS, Arrays, Sizes, model
from independent_llmc import read_llmc

SIZES = {
    "6 heads, 2 of keys": Sizes(),
    "4 heads, 4 of keys": Sizes(n_head=4, n_kv_head=4, n_embd=24),
    "8 heads, 1 of keys": Sizes(n_head=8, n_kv_head=1, n_embd=48, n_ffn=32),
    "all of one size": Sizes(n_head=4, n_kv_head=4, n_embd=24, n_ffn=24, vocab=24, block=24, n_layer=1),
}
"""The first so that heads per head of keys are not as many as those of keys; the last makes all square."""


def pairs(architecture: str) -> Iterator[tuple[str, str]]:
    return itertools.permutations(LAYOUTS[architecture], 2)


def can_hold(architecture: str, layout: str, *, tied: bool) -> bool:
    """Return whether a layout can have such a head: llm.c's and InfiniTrain's GPT-2 has the embedding."""
    return tied or architecture != "gpt2" or layout in ("hf", "gguf")


def assert_is_model(found: Arrays, expected: Arrays, layout: str, *, tied: bool) -> None:
    """A tied head need not be stored; all else must be, to the bit, and nothing more."""
    if tied and HEADS[layout] not in found:
        expected = {name: array for name, array in expected.items() if name != HEADS[layout]}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name, strict=True)


def stored(path: Path) -> Arrays:
    return {name: each.array for name, each in read_ckpt(path).items()}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("architecture", LAYOUTS)
def test_m1_m3_every_layout_becomes_every_other(
    architecture: str, sizes: Sizes, tied: bool, tmp_path: Path
) -> None:
    for source, target in pairs(architecture):
        if not can_hold(architecture, source, tied=tied):
            continue
        ckptio.save(model(architecture, source, sizes, tied=tied), tmp_path / "in.ckpt", overwrite=True)
        how: dict[str, Any] = {"layout": target, "config": sizes.config, "overwrite": True}
        if not can_hold(architecture, target, tied=tied):
            with pytest.raises(UnsupportedError, match="largest absolute difference"):
                ckptio.convert(tmp_path / "in.ckpt", tmp_path / "out.ckpt", **how)
            continue
        ckptio.convert(tmp_path / "in.ckpt", tmp_path / "out.ckpt", **how)
        expected = model(architecture, target, sizes, tied=tied)
        assert_is_model(stored(tmp_path / "out.ckpt"), expected, target, tied=tied)


@pytest.mark.parametrize("architecture", LAYOUTS)
def test_m1_m3_through_every_format(architecture: str, target: str, tmp_path: Path) -> None:
    sizes, tied = Sizes(n_layer=1), architecture == "gpt2"
    for one, other in pairs(architecture):
        ckptio.save(model(architecture, one, sizes, tied=tied), tmp_path / "in.ckpt", overwrite=True)
        how: dict[str, Any] = {"layout": other, "overwrite": True}
        middle, last = tmp_path / "middle", tmp_path / "out.ckpt"
        ckptio.convert(tmp_path / "in.ckpt", middle, checkpoint_format=target, config=sizes.config, **how)
        expected = model(architecture, other, sizes, tied=tied)
        assert_is_model(ckptio.load(middle, checkpoint_format=target), expected, other, tied=tied)
        # The hyperparameters are with the file now.
        how["layout"] = one
        ckptio.convert(middle, last, source_format=target, **how)
        assert_is_model(stored(last), model(architecture, one, sizes, tied=tied), one, tied=tied)


@pytest.mark.parametrize("architecture", ["gpt2", "llama3"])
def test_m1_m3_through_the_files_of_llmc(architecture: str, tmp_path: Path) -> None:
    sizes, tied = Sizes(n_ffn=96), architecture == "gpt2"
    config = {**sizes.config, "multiple_of": 32, "ffn_dim_multiplier": 1.0}
    for layout in LAYOUTS[architecture]:
        ckptio.save(model(architecture, layout, sizes, tied=tied), tmp_path / "in.ckpt", overwrite=True)
        ckptio.convert(tmp_path / "in.ckpt", tmp_path / "a.bin", config=config, overwrite=True)
        _, _, found = read_llmc(tmp_path / "a.bin")
        arrays = {name: np.frombuffer(data, "<f4").reshape(shape) for name, (shape, data) in found.items()}
        assert_is_model(arrays, model(architecture, "llmc", sizes, tied=tied), "llmc", tied=tied)
        how: dict[str, Any] = {"layout": layout, "config": {"norm_eps": 1e-5}, "overwrite": True}
        ckptio.convert(tmp_path / "a.bin", tmp_path / "out.ckpt", **how)
        expected = model(architecture, layout, sizes, tied=tied)
        assert_is_model(stored(tmp_path / "out.ckpt"), expected, layout, tied=tied)


@pytest.mark.parametrize("layout", ["llmc", "hf", "gguf"])
def test_m1_the_report_says_where_each_part_went(layout: str, tmp_path: Path) -> None:
    sizes = Sizes(n_layer=1)
    for source in LAYOUTS["llama3"]:
        arrays = model("llama3", source, sizes, tied=False)
        ckptio.save(arrays, tmp_path / "in.ckpt", overwrite=True)
        how: dict[str, Any] = {"layout": layout, "config": sizes.config, "overwrite": True}
        report = ckptio.convert(tmp_path / "in.ckpt", tmp_path / "out.ckpt", **how)
        fates = {fate.name: fate for fate in report.fates if fate.kind == "tensor"}
        assert fates.keys() == arrays.keys()
        expected = model("llama3", layout, sizes, tied=False)
        for name, array in arrays.items():
            targets = (fates[name].target or "").split(", ")
            wanted = [other for other, rows in expected.items() if np.isin(array, rows).all()]
            wanted = wanted or [other for other, rows in expected.items() if np.isin(rows, array).all()]
            assert targets == wanted, name
            same = len(wanted) == 1 and np.array_equal(array, expected[wanted[0]])
            if same:
                assert "reordered" not in fates[name].actions


@pytest.mark.parametrize(
    ("vocab", "block", "width"),
    [(50257, 8, 2), (128, 128, 8), (97, 128, 8), (97, 16, 128), (97, 128, 128), (128, 128, 128)],
)
def test_m2_padding_is_of_the_embedding_whatever_else_has_its_size(
    vocab: int, block: int, width: int, tmp_path: Path
) -> None:
    sizes = Sizes(n_head=1, n_kv_head=1, n_embd=width, vocab=vocab, block=block, n_layer=1)
    padded = -(-vocab // 128) * 128
    for layout in LAYOUTS["gpt2"]:
        expected = model("gpt2", layout, sizes, tied=True)
        ckptio.save(expected, tmp_path / "in.ckpt", overwrite=True)
        ckptio.convert(tmp_path / "in.ckpt", tmp_path / "a.bin", config=sizes.config, overwrite=True)
        words, _, found = read_llmc(tmp_path / "a.bin")
        assert words[2:8] == (block, vocab, 1, 1, width, padded)
        plain = model("gpt2", "llmc", sizes, tied=True)
        assert found == {
            name: (array.shape, array.tobytes()) for name, array in plain.items() if name != HEADS["llmc"]
        }
        ckptio.convert(tmp_path / "a.bin", tmp_path / "out.ckpt", layout=layout, overwrite=True)
        assert_is_model(stored(tmp_path / "out.ckpt"), expected, layout, tied=True)


LAYOUT_OF = [(architecture, layout) for architecture, layouts in LAYOUTS.items() for layout in layouts]


EMBEDDINGS = {"hf": "model.embed_tokens.weight", "gguf": "token_embd.weight"}


def embedding(architecture: str, layout: str) -> str:
    return "transformer.wte.weight" if architecture == "gpt2" and layout == "hf" else EMBEDDINGS[layout]


def optional(architecture: str, layout: str, name: str) -> bool:
    """Return whether a model is whole without a tensor when no config says that its head is tied."""
    if architecture == "gpt2":
        return name.endswith((".attn.bias", ".wte.weight", "token_embd.weight")) or name == HEADS[layout]
    return name == HEADS[layout] and layout in EMBEDDINGS


@pytest.mark.parametrize(("architecture", "layout"), LAYOUT_OF)
def test_m4_any_name_that_is_changed_and_any_that_is_added_is_listed(architecture: str, layout: str) -> None:
    sizes = Sizes()
    arrays = model(architecture, layout, sizes, tied=True)
    for name in arrays:
        odd = name[:-1] + "_"
        changed = {(odd if each == name else each): array for each, array in arrays.items()}
        changed["one.too.many"] = arrays[name]
        wanted = (
            {odd, "one.too.many"} if optional(architecture, layout, name) else {odd, "one.too.many", name}
        )
        for target in LAYOUTS[architecture]:
            checkpoint = MemoryCheckpoint(changed, metadata={"config": sizes.config})
            assert {problem.where for problem in apply_layout(checkpoint, target).problems} == wanted


@pytest.mark.parametrize(("architecture", "layout"), LAYOUT_OF)
def test_m4_the_command_writes_nothing_and_names_them(
    architecture: str, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = Sizes()
    arrays = model(architecture, layout, sizes, tied=True)
    name = next(each for each in arrays if "1." in each and not optional(architecture, layout, each))
    changed = {each + ("_" if each == name else ""): array for each, array in arrays.items()}
    ckptio.save({**changed, "more": np.ones(3, "<f4")}, tmp_path / "in.ckpt")
    before = set(tmp_path.iterdir())
    flags = [f"--config={key}={value}" for key, value in sizes.config.items()]
    for target in LAYOUTS[architecture]:
        for out, chosen in (("out.ckpt", "statedict"), ("out", "safetensors"), ("out.gguf", "gguf")):
            ask = ["convert", str(tmp_path / "in.ckpt"), str(tmp_path / out), f"--layout={target}", *flags]
            assert main([*ask, f"--checkpoint_format={chosen}"]) == 1
            said = capsys.readouterr().err
            for each, what in ((name, "missing"), (f"{name}_", "unexpected"), ("more", "unexpected")):
                assert f"  {each}: {what}" in said
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("says", [True, False, None])
@pytest.mark.parametrize("layout", EMBEDDINGS)
@pytest.mark.parametrize("architecture", LAYOUTS)
def test_m4_one_of_head_and_embedding_serves_as_both_only_where_the_config_allows(
    architecture: str, layout: str, says: bool | None
) -> None:
    sizes = Sizes(n_layer=1)
    whole = model(architecture, layout, sizes, tied=False)
    names = (embedding(architecture, layout), HEADS[layout])
    config = {**sizes.config, **({} if says is None else {"tie_word_embeddings": says})}
    for kept, absent in (names, names[::-1]):
        arrays = {name: array for name, array in whole.items() if name != absent}
        for target in LAYOUTS[architecture]:
            checkpoint = MemoryCheckpoint(arrays, metadata={"config": config})
            result = apply_layout(checkpoint, target)
            refused = says is False or (says is None and absent == names[0] and architecture != "gpt2")
            assert [problem.where for problem in result.problems] == ([absent] if refused else [])
            if refused or target == layout:
                continue
            found = {name: result.checkpoint.read(name) for name in result.checkpoint}
            expected = model(architecture, target, sizes, tied=True)
            values = {name: arrays[kept] for name in expected if expected[name] is expected[HEADS[target]]}
            assert len(values) == 2
            assert_is_model(found, {**expected, **values}, target, tied=True)
