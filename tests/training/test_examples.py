"""The two training entries: their models, data and flags, and that an interrupted run is the whole one."""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckptio
from entries import Run, module, train
from experiments.resume import Case, Plan, run_case
from golden import all_golden, golden, golden_id
from independent import read_ckpt

GPT2 = golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin")
LLAMA3 = golden("llmc_llama3/llama3_L2H4KV2C32V96T16_masterlayout_fp32.bin")
TINY = ("--model", "tiny", "--warmup_iteration", "2")
TOKENS = {"gpt2": golden("tokens/tok_gpt2_V97.bin"), "llama3": golden("tokens/tok_llama3_V96.bin")}
DTYPES = {"gpt2": "<u2", "llama3": "<u4"}


def load(path: Path, **switches: bool) -> Any:
    name = "llama3" if "llama" in path.name else "gpt2"
    return module("loop").load_llmc(module(f"train_{name}").ENTRY, path, **switches)[0]


@pytest.mark.parametrize("path", all_golden("llmc_*/*_io.npz"), ids=golden_id)
def test_a_model_of_llmc_gives_the_logits_of_llmc(path: Path) -> None:
    truth = np.load(path)
    model = load(path.with_name(path.name.replace("_io.npz", "_fp32.bin")))
    with torch.no_grad():
        logits = model(torch.from_numpy(truth["x"].astype("i8")))
    targets = torch.from_numpy(truth["y"].astype("i8"))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert np.abs(logits.numpy() - truth["logits"]).max() < 5e-6
    assert float(loss) == pytest.approx(float(truth["loss"]), rel=0, abs=2e-6)


@pytest.mark.parametrize(("run", "start"), [("gpt2_adam", GPT2), ("llama3_adam", LLAMA3)])
def test_in_statedict_a_model_has_what_infinitrains_loader_demands(
    run: str, start: Path, tmp_path: Path
) -> None:
    theirs = read_ckpt(golden(f"infinitrain/runs/{run}/ckpt/checkpoint_step_000002/model.ckpt"))
    saving = ("--checkpoint_dir", tmp_path, "--save_steps", 1, "--num_iteration", 1)
    model = run.partition("_")[0]
    ours = train(model, "--llmc_filepath", start, "--input_bin", TOKENS[model], *saving)
    assert ours.status == 0, ours.said
    found = read_ckpt(tmp_path / "checkpoint_step_000001/model.ckpt")
    assert {name: (each.kind, each.shape) for name, each in found.items()} == {
        name: (each.kind, each.shape) for name, each in theirs.items()
    }
    if model == "gpt2":
        assert found["lm_head.weight"].data == found["transformer.wte.weight"].data


@pytest.mark.parametrize("kind", TOKENS)
def test_a_batch_is_whole_sequences_in_order(kind: str) -> None:
    tokens = module("tokens").read_tokens(TOKENS[kind])
    raw = np.frombuffer(TOKENS[kind].read_bytes()[1024:], DTYPES[kind]).astype("i8")
    assert np.array_equal(tokens.values, raw)
    batches = module("tokens").Batches(tokens, 16)
    inputs, targets = batches.take(5, 3, 97)
    assert np.array_equal(inputs, raw[80:128].reshape(3, 16))
    assert np.array_equal(targets, raw[81:129].reshape(3, 16))


def test_a_tail_is_dropped_and_the_data_begins_again() -> None:
    # 4000 tokens of which each needs a successor: 249 sequences of 16, and 15 tokens of a 250th.
    batches = module("tokens").Batches(module("tokens").read_tokens(TOKENS["gpt2"]), 16)
    last, again = batches.take(248, 1, 97)[0], batches.take(249, 1, 97)[0]
    raw = np.frombuffer(TOKENS["gpt2"].read_bytes()[1024:], "<u2")
    assert np.array_equal(last[0], raw[248 * 16 : 249 * 16])
    assert np.array_equal(again[0], raw[:16])
    assert np.array_equal(batches.take(248, 2, 97)[0], np.stack([last[0], again[0]]))


def damaged(tmp_path: Path, at: int, word: int | None) -> Path:
    """Return a copy of a token file with another header word, or cut at a byte."""
    data = bytearray(TOKENS["gpt2"].read_bytes())
    if word is None:
        del data[at:]
    else:
        data[at : at + 4] = word.to_bytes(4, "little")
    path = tmp_path / "damaged.bin"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("at", "word", "what"),
    [
        (0, 20240326, "not a token file of llm.c"),
        (4, 2, "version 2 found, 1 expected"),
        (8, 5000, "9024 bytes, but the header says 5000 tokens"),
        (8, 2**31, "tokens"),
        (9000, None, "9000 bytes, but the header says 4000 tokens"),
        (7, None, "not a token file of llm.c"),
        (0, None, "not a token file of llm.c"),
    ],
)
def test_a_damaged_token_file_is_refused(tmp_path: Path, at: int, word: int | None, what: str) -> None:
    ours = train("gpt2", *TINY, "--input_bin", damaged(tmp_path, at, word))
    assert (ours.status, ours.losses) == (1, {})
    assert what in ours.said


@pytest.mark.parametrize(
    ("model", "flags", "what"),
    [
        ("gpt2", ("--llmc_filepath", LLAMA3), "holds llama3, not gpt2"),
        ("llama3", ("--llmc_filepath", GPT2), "holds gpt2, not llama3"),
        ("gpt2", ("--llmc_filepath", GPT2), "the model knows 97 tokens only"),  # the text is in bytes
        ("gpt2", (*TINY, "--sequence_length", 17), "the model takes 1 to 16 tokens"),
        ("gpt2", (*TINY, "--total_batch_size", 129), "not a multiple of batch_size 8"),
        ("gpt2", ("--input_bin", "nowhere.bin"), "nowhere.bin"),
        ("gpt2", ("--save_steps", 2), "--checkpoint_dir"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(model: str, flags: tuple[object, ...], what: str) -> None:
    ours = train(model, *flags)
    assert (ours.status, ours.losses) == (1, {})
    assert what in ours.said


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.25, 0.5, 0.75, 1.0, 1.0, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
    ],
)
def test_the_learning_rate_rises_and_falls(schedule: str, rates: list[float]) -> None:
    given = argparse.Namespace(learning_rate=1.0, warmup_iteration=4, num_iteration=8, schedule=schedule)
    assert [module("flags").learning_rate(step, given) for step in range(8)] == pytest.approx(rates)


def test_a_step_of_several_batches_is_that_of_one_large_batch() -> None:
    small = train("llama3", *TINY, "--batch_size", 2, "--total_batch_size", 128, "--num_iteration", 4)
    large = train("llama3", *TINY, "--batch_size", 8, "--num_iteration", 4)
    assert small.losses == pytest.approx(large.losses, rel=0, abs=5e-6)
    assert len(small.losses) == 4


def test_a_resumed_run_may_have_another_batch_size(tmp_path: Path) -> None:
    saving = ("--checkpoint_dir", tmp_path, "--save_steps", 3)
    train("gpt2", *TINY, "--batch_size", 4, "--num_iteration", 3, *saving)
    # 12 sequences are consumed; the next 8 begin there, with the very model: a step of 4 + 4.
    again = ("--resume_from", tmp_path, "--num_iteration", 4)
    one = train("gpt2", *TINY, *again, "--batch_size", 8)
    two = train("gpt2", *TINY, *again, "--batch_size", 4, "--total_batch_size", 128)
    assert (one.status, two.status) == (0, 0), one.said + two.said
    assert one.losses == pytest.approx(two.losses, rel=0, abs=2e-6)
    other = train("gpt2", *TINY, *again, "--batch_size", 4)
    assert other.losses[4] != pytest.approx(one.losses[4], rel=0, abs=1e-4)


@pytest.mark.parametrize(
    "case", [Case("gpt2", "bfloat16", "llmc"), Case("llama3", "float32", "statedict")], ids=str
)
def test_an_interrupted_run_ends_as_the_whole_one(case: Case, tmp_path: Path) -> None:
    plan = Plan(iterations=20, every=4, keep=0, resume_at=8)
    outcome = run_case(case, plan, tmp_path / str(case), random.Random(case.model))
    assert outcome.faults == ()
    assert (outcome.common, outcome.matched) == (12, 12)


@pytest.mark.parametrize("layout", ["master", "branch", "infinitrain"])
@pytest.mark.parametrize("start", [*all_golden("llmc_llama3/llama3*_fp32.bin")], ids=golden_id)
def test_a_llama_from_llmc_is_saved_for_llmc_again(start: Path, layout: str, tmp_path: Path) -> None:
    saving = ("--checkpoint_dir", tmp_path, "--save_steps", 1, "--checkpoint_format", "llmc")
    flags = ("--input_bin", TOKENS["llama3"], "--num_iteration", 1, "--learning_rate", 0)
    ours = train("llama3", "--llmc_filepath", start, *flags, *saving, "--format_option", f"layout={layout}")
    assert ours.status == 0, ours.said
    again = train("llama3", "--llmc_filepath", tmp_path / "checkpoint_step_000001/model.bin", *flags)
    # Nothing is learned at a rate of 0, so that it is the same model still, with the same hyperparameters.
    assert again.losses == ours.losses
    assert ours.losses.keys() == {1}


def train_untied(*flags: object) -> Run:
    return train("gpt2", *TINY, "--untied_head", "--learning_rate", 0.01, *flags)


def test_an_untied_head_is_refused_before_step_1_where_it_would_be_lost(tmp_path: Path) -> None:
    saving = ("--checkpoint_dir", tmp_path / "run", "--save_steps", 2, "--checkpoint_format", "llmc")
    ours = train_untied(*saving)
    assert (ours.status, ours.losses) == (1, {})
    assert re.search(
        "lm_head.weight: equal to transformer.wte.weight now, but a tensor of its own", ours.said
    )
    assert "statedict" in ours.said
    assert not [path for path in (tmp_path / "run").glob("*") if path.name.startswith("checkpoint")]


def test_a_writer_that_drops_an_untied_head_changes_the_loss(tmp_path: Path) -> None:
    run = tmp_path / "run"
    whole = train_untied("--num_iteration", 6, "--checkpoint_dir", run, "--save_steps", 5)
    resumed = train_untied("--num_iteration", 6, "--resume_from", run)
    assert resumed.losses == {6: whole.losses[6]}

    # As InfiniTrain's first stage did: the head is left out, and comes back as the embedding.
    tensors = ckptio.load(run / "checkpoint_step_000005/model.ckpt")
    assert not np.array_equal(tensors["lm_head.weight"], tensors["transformer.wte.weight"])
    kept = {name: each for name, each in tensors.items() if name != "lm_head.weight"}
    config = {"block_size": 16, "vocab_size": 256, "n_layer": 2, "n_head": 2, "n_embd": 16}
    ckptio.save(kept, tmp_path / "dropped.bin", checkpoint_format="llmc", metadata={"config": config})
    model, truth = (load(tmp_path / "dropped.bin", untied_head=True) for _ in range(2))
    truth.lm_head.weight.data = torch.from_numpy(tensors["lm_head.weight"])
    loss = first_loss(model, position=40)
    assert first_loss(truth, position=40) == pytest.approx(whole.losses[6], rel=0, abs=2e-6)
    assert abs(loss - whole.losses[6]) > 1e-3


def first_loss(model: Any, position: int) -> float:
    inputs, targets = module("tokens").Batches(module("tokens").read_text(), 16).take(position, 8, 256)
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()))
