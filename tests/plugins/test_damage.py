"""One golden file of each kind, damaged in some 6,000 ways; ``tests/damage.py`` does it to all."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptio
from damage import damage, one_element_differs
from golden import golden

KINDS = {
    "llmc_gpt2/gpt2_L2H2C32V97T16_bf16.bin": "llmc",
    "llmc_llama3/llama3_L4H4KV2C16V96T16_masterlayout_bf16.bin": "llmc",
    "llmc_llama3/llama3_L4H4KV2C16V96T16_branchlayout_bf16.bin": "llmc",
    "llmc_llama3/llama3_L4H4KV2C16V96T16_infinitrainheader_fp32.bin": "llmc",
    "infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt": "statedict",
    "flax/mixed_to_bytes.msgpack": "msgpack",
    "flax/chunked1000.msgpack": "msgpack",
    "safetensors/mixed.safetensors": "safetensors",
    "torch/tied_legacy.pt": "torch",
    "torch/tied_zip.pt": "torch",
}


@pytest.mark.parametrize("relative", KINDS)
def test_no_damage_is_worse_than_an_error_message(relative: str, tmp_path: Path) -> None:
    counts = damage(golden(relative), KINDS[relative], tmp_path)
    assert counts["refused"] > 200
    with ckptio.open(golden(relative)) as whole:
        assert counts["one element differs"] >= min(10, len(whole.specs))


def test_the_judge_sees_more_than_one_byte() -> None:
    assert one_element_differs({"a": b"xy", "b": b"z"}, {"a": b"xx", "b": b"z"})
    assert not one_element_differs({"a": b"xy", "b": b"z"}, {"a": b"xx", "b": b"y"})
    assert not one_element_differs({"a": b"yy"}, {"a": b"xx"})
    assert not one_element_differs({"c": b"x"}, {"a": b"x"})
