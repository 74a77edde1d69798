"""verify: whole files pass, and each kind of fault is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from golden import all_golden, golden, golden_id

GPT2 = golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin")
NATIVE = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt")


@pytest.mark.parametrize(
    "path", [*all_golden("flax/*.msgpack"), GPT2, *all_golden("infinitrain/**/*.ckpt")], ids=golden_id
)
def test_golden_files_are_whole(ckpt: Callable[..., Any], path: Path) -> None:
    ended = ckpt("verify", path)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(f"{path}: whole\n")


def test_json_says_what_was_checked(ckpt: Callable[..., Any]) -> None:
    with np.load(GPT2.with_name(GPT2.stem + ".truth.npz")) as truth:
        stored = [n for n in truth if not n.endswith(".attn.bias") and n != "lm_head.weight"]
        size = sum(truth[name].nbytes for name in stored)
    about = json.loads(ckpt("verify", GPT2, "--json").out)
    assert (about["ok"], about["problems"], about["omissions"]) == (True, [], [])
    assert (about["tensors"], about["tensor_bytes"], about["ties"]) == (len(stored), size, 1)


@pytest.mark.parametrize("size", [3, 11, 1000, -1])
def test_a_cut_file_is_an_error_with_its_place(ckpt: Callable[..., Any], tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.ckpt"
    path.write_bytes(NATIVE.read_bytes()[:size])
    ended = ckpt("verify", path, "--checkpoint_format", "statedict")
    assert (ended.status, ended.out) == (1, "")
    assert str(path) in ended.err
    assert "at byte" in ended.err


def test_a_sidecar_of_another_file_is_a_problem(ckpt: Callable[..., Any], saved: Callable[..., Path]) -> None:
    path = saved("a.ckpt", {"a": np.ones(2, np.float32)}, metadata={"note": "beside"})
    ended = ckpt("verify", path)
    assert ended.status == 0
    assert f"the sidecar fits: {path}.meta.json" in ended.out
    os.replace(saved("b.ckpt", {"b": np.ones(3, np.float32)}), path)
    ended = ckpt("verify", path)
    assert (ended.status, ended.err) == (1, "")
    assert ended.out.startswith(f"{path}: NOT whole\n")
    assert f"problem: {path}.meta.json: ignored" in ended.out


def test_a_reader_that_loses_bytes_is_found_out(
    ckpt: Callable[..., Any], saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved("a.ckpt", {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32), "c": np.ones(1)})

    def chunks(self: object, name: str, max_bytes: int = 0) -> Iterator[memoryview]:
        if name == "b":
            raise ckptio.CorruptCheckpointError("cannot be read", path="there", offset=7)
        yield memoryview(bytes(8))

    monkeypatch.setattr(ckptio.FileCheckpoint, "chunks", chunks)
    about = json.loads(ckpt("verify", path, "--json").out)
    assert about["problems"] == ["b: there: cannot be read (at byte 7)"]
    path = saved("b.ckpt", {"a": np.ones(2, np.float32), "d": np.ones(3, np.float32)})
    ended = ckpt("verify", path)
    assert ended.status == 1
    assert "problem: d: 8 bytes were read of 12" in ended.out


def test_what_the_reader_leaves_out_is_told(ckpt: Callable[..., Any], tmp_path: Path) -> None:
    data = bytearray(GPT2.read_bytes())
    end = 1024 + 128 * 32 * 4  # of the padded embedding
    data[end - 4 : end] = np.float32(1.5).tobytes()
    path = tmp_path / "padded.bin"
    path.write_bytes(data)
    ended = ckpt("verify", path)
    assert ended.status == 0
    assert "left out by the reader: transformer.wte.weight: " in ended.out
