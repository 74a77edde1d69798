"""convert: every option reaches the library; the report, the refusals and the bar go where they should."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from golden import golden

GPT2 = golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin")
NATIVE = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt")
EAGER = """
import sys
import ckptio.cli.progress
from ckptio.cli import main

ckptio.cli.progress._PATIENCE = 0.0
sys.exit(main())
"""


def truth() -> dict[str, np.ndarray[Any, Any]]:
    with np.load(GPT2.with_name(GPT2.stem + ".truth.npz")) as arrays:
        return {name: arrays[name] for name in arrays}


def test_the_suffix_chooses_and_the_values_arrive(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    target = tmp_path / "model.ckpt"
    ended = ckpt("convert", GPT2, target)
    assert (ended.status, ended.err) == (0, "")
    first = ended.out.splitlines()[0]
    assert first.startswith(f"{GPT2} (llmc) -> {target} (statedict)")
    arrays = ckptio.load(target)
    wanted = {name: each for name, each in truth().items() if not name.endswith(".attn.bias")}
    assert arrays.keys() == wanted.keys()
    for name, array in arrays.items():
        assert array.tobytes() == wanted[name].tobytes(), name


@pytest.mark.parametrize("flag", ["--checkpoint_format", "--checkpoint-format"])
def test_the_flag_outranks_the_suffix(ckpt: Callable[..., Any], tmp_path: Path, flag: str) -> None:
    target = tmp_path / "model.ckpt"
    assert ckpt("convert", GPT2, target, flag, "msgpack").status == 0
    with ckptio.open(target, checkpoint_format="msgpack") as checkpoint:
        assert "transformer.wte.weight" in checkpoint


@pytest.mark.parametrize("flag", ["--source_format", "--source-format"])
def test_the_source_format_is_taken_at_its_word(ckpt: Callable[..., Any], tmp_path: Path, flag: str) -> None:
    assert ckpt("convert", GPT2, tmp_path / "a.ckpt", flag, "llmc").status == 0
    ended = ckpt("convert", GPT2, tmp_path / "b.ckpt", flag, "statedict")
    assert ended.status == 1
    assert "looks like llmc" in ended.err


def test_select_drop_and_dtype(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    target = tmp_path / "part.ckpt"
    ended = ckpt(
        *("convert", GPT2, target, "--dtype", "f16"),
        *("--select", "*.ln_1.*", "--select", "transformer.wpe*", "--drop", "*.bias"),
    )
    assert (ended.status, ended.err) == (0, "")
    wanted = truth()
    names = {n for n in wanted if (".ln_1." in n or ".wpe" in n) and not n.endswith(".bias")}
    arrays = ckptio.load(target)
    assert arrays.keys() == names
    for name, array in arrays.items():
        assert array.tobytes() == wanted[name].astype(np.float16).tobytes(), name


def test_layout_adds_what_the_other_program_stores(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    target = tmp_path / "model.ckpt"
    assert ckpt("convert", GPT2, target, "--layout", "infinitrain").status == 0
    wanted = truth()
    arrays = ckptio.load(target)
    assert arrays.keys() == wanted.keys()
    for name, array in arrays.items():
        assert np.array_equal(array, wanted[name]), name


def test_config_is_asked_for_and_taken(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    target = tmp_path / "model.bin"
    ended = ckpt("convert", NATIVE, target, "--checkpoint_format", "llmc")
    assert ended.status == 1
    assert "--config n_head" in ended.err
    assert not target.exists()
    ended = ckpt("convert", NATIVE, target, "--checkpoint_format", "llmc", "--config", "n_head=2")
    assert (ended.status, ended.err) == (0, "")
    header = np.fromfile(target, "<i4", 256)
    assert (header[0], header[5]) == (20240326, 2)


def test_config_is_held_against_the_shapes_whatever_the_format(
    ckpt: Callable[..., Any], tmp_path: Path
) -> None:
    wrong = {"n_layer": 3, "vocab_size": 96, "n_embd": 64, "block_size": 32, "n_head": 5}
    given = [f"--config={key}={value}" for key, value in wrong.items()]
    for name in ("a.ckpt", "a.pt", "a.safetensors", "out/"):
        ended = ckpt("convert", NATIVE, f"{tmp_path}/{name}", *given[:4])
        assert ended.status == 1
        assert [f"config.{key}: {wrong[key]}, but the tensors" in ended.err for key in wrong] == [
            True
        ] * 4 + [False]
        ended = ckpt("convert", NATIVE, f"{tmp_path}/{name}", given[4])
        assert (ended.status, "n_embd 32 is not divisible by n_head 5" in ended.err) == (1, True)
        assert not (tmp_path / name).exists()
    # Of tensors that are no model, nothing is known.
    assert ckpt("convert", NATIVE, tmp_path / "b.ckpt", "--drop", "*.ln_1.*", *given).status == 0


def test_a_loss_names_the_option_that_accepts_it(
    ckpt: Callable[..., Any], saved: Callable[..., Path]
) -> None:
    source = saved("big.ckpt", {"w": np.array([1e30, 1.0], np.float32)})
    target = source.with_name("small.ckpt")
    ended = ckpt("convert", source, target, "--dtype", "f16")
    assert ended.status == 1
    assert "--allow overflow" in ended.err
    assert "w: " in ended.err
    assert not target.exists()
    ended = ckpt("convert", source, target, "--dtype", "f16", "--allow", "padding,overflow")
    assert (ended.status, ended.err) == (0, "")
    assert np.array_equal(ckptio.load(target)["w"], np.array([np.inf, 1], np.float16))
    assert (
        ckpt("convert", source, target, "--dtype=f16", "--allow=padding", "--allow=overflow", "-f").status
        == 0
    )


def test_options_of_the_writer_reach_it(ckpt: Callable[..., Any], saved: Callable[..., Path]) -> None:
    source = saved("a.ckpt", {"w": np.arange(100, dtype=np.float32)})
    target = source.with_name("a.msgpack")
    assert ckpt("convert", source, target, "-o", "chunk_bytes=80").status == 0
    # flax's own mark of an array in pieces.
    assert b"__msgpack_chunked_array__" in target.read_bytes()
    ended = ckpt("convert", source, source.with_name("b.msgpack"), "-o", "colour=red")
    assert ended.status == 1
    assert "'colour' (-o); known: chunk_bytes" in ended.err


def test_an_existing_target_stays_unless_overwritten(
    ckpt: Callable[..., Any], saved: Callable[..., Path]
) -> None:
    source = saved("a.ckpt", {"w": np.ones(3, np.float32)})
    target = source.with_name("b.msgpack")
    target.write_bytes(b"mine")
    ended = ckpt("convert", source, target)
    assert ended.status == 1
    assert "--overwrite" in ended.err
    assert target.read_bytes() == b"mine"
    for flag in ("--overwrite", "-f"):
        assert ckpt("convert", source, target, flag).status == 0
    assert np.array_equal(ckptio.load(target)["w"], np.ones(3, np.float32))


def test_json_accounts_for_every_name(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    report = json.loads(ckpt("convert", GPT2, tmp_path / "a.ckpt", "--json").out)
    tensors = {each["name"]: each["actions"] for each in report["fates"] if each["kind"] == "tensor"}
    assert tensors.keys() == {name for name in truth() if not name.endswith(".attn.bias")}
    assert "tied" in tensors["lm_head.weight"]
    assert (report["source_format"], report["target_format"]) == ("llmc", "statedict")


@pytest.mark.parametrize("flag", ["--quiet", "-q"])
def test_quiet_prints_nothing(ckpt: Callable[..., Any], tmp_path: Path, flag: str) -> None:
    ended = ckpt("convert", GPT2, tmp_path / "a.ckpt", flag)
    assert (ended.status, ended.out, ended.err) == (0, "", "")


@pytest.mark.parametrize("quiet", [False, True])
def test_the_bar_shows_on_a_terminal_unless_quiet(tmp_path: Path, quiet: bool) -> None:
    watching, terminal = pty.openpty()
    argv = [sys.executable, "-c", EAGER, "convert", str(GPT2), str(tmp_path / "a.ckpt"), *(["-q"] * quiet)]
    try:
        ended = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=terminal, env={**os.environ, "TERM": "xterm"}, timeout=60
        )
    finally:
        os.close(terminal)
    shown = b""
    try:
        while piece := os.read(watching, 4096):
            shown += piece
    except OSError:
        pass  # the other end is closed, and all has been read
    finally:
        os.close(watching)
    assert ended.returncode == 0
    assert (b"kB" in shown) is not quiet


def test_there_is_no_bar_where_there_is_no_terminal(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", EAGER, "convert", str(GPT2), str(tmp_path / "a.ckpt")]
    ended = subprocess.run(argv, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("target", "layout", "wanted"),
    [
        ("a.gguf", None, "gguf"),
        ("a.gguf", "gguf", None),
        ("a/", None, "hf"),
        ("a/", "hf", None),
        ("a.safetensors", None, None),
        ("a.ckpt", None, None),
    ],
)
def test_who_runs_the_target_and_wants_another_layout_is_named(
    ckpt: Callable[..., Any], tmp_path: Path, target: str, layout: str | None, wanted: str | None
) -> None:
    format_name = ("--checkpoint_format", "safetensors") if target == "a/" else ()
    asked = () if layout is None else ("--layout", layout)
    ended = ckpt("convert", GPT2, f"{tmp_path}/{target}", *format_name, *asked)
    assert ended.status == 0
    found = [line for line in ended.out.splitlines() if line.startswith("  layout: ")]
    assert [line.rpartition(" ")[2] for line in found] == ([] if wanted is None else [wanted])
