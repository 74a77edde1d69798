"""`TrainerState` and ``trainer_state.json``: valid JSON out, historical files in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptio import CorruptCheckpointError, OptionError
from ckptio.trainer_file import read_document
from ckptio.training import TrainerState
from ckptio.training.trees import pack, unpack
from golden import all_golden, golden_id

STATES = all_golden("infinitrain/**/trainer_state.json")


def read(path: Path, text: str) -> TrainerState:
    path.write_text(text)
    return TrainerState.from_json(read_document(path), path)


@pytest.mark.parametrize("path", STATES, ids=golden_id)
def test_every_file_of_infinitrain_is_read_and_written_as_valid_json(path: Path) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(path.read_text())
    lines = [line.strip().rstrip(",") for line in path.read_text().splitlines()[1:-1]]
    wanted = json.loads("{" + ",".join(lines) + "}")
    state = TrainerState.from_json(read_document(path), path)
    again = json.loads(json.dumps(state.to_json(), allow_nan=False))
    assert {key: again[key] for key in wanted} == wanted
    assert TrainerState.from_json(again) == state


FIRST_STAGE = """{
  "global_step": 3, "data_batch_idx": 5, "data_batch_stride": 2, "best_loss": %s,
  "last_lr": 1e-05, "optimizer_type": "Adam", "checkpoint_format": "pth",
  "ddp_size": 2, "tp_size": 1, "sp_size": 1, "pp_size": 1
}
"""


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *(("inf", math.inf), ("-inf", -math.inf), ("nan", math.nan), ("-nan", math.nan)),
        *(("Infinity", math.inf), ("NaN", math.nan), ("2.5", 2.5)),
    ],
)
def test_the_first_stage_of_infinitrain_is_read(tmp_path: Path, word: str, value: float) -> None:
    state = read(tmp_path / "state.json", FIRST_STAGE % word)
    assert state.best_loss == value or (math.isnan(state.best_loss) and math.isnan(value))
    assert (state.global_step, state.consumed_batches, state.ddp_size) == (3, 5, 2)
    assert (state.optimizer_type, state.checkpoint_format, state.last_lr) == ("Adam", "pth", 1e-05)
    assert state.unknown == {"data_batch_stride": 2}


@pytest.mark.parametrize("name", ["data_batch_idx", "consumed_batches", "consumed_micro_batches"])
def test_a_position_in_batches_needs_the_size_of_a_batch(tmp_path: Path, name: str) -> None:
    state = read(tmp_path / "state.json", json.dumps({"global_step": 1, name: 10}))
    assert state.with_batch_size(4).consumed_samples == 40
    assert state.with_batch_size(4).batches(8) == 5
    with pytest.raises(OptionError, match="10 batches"):
        state.with_batch_size(None)


@pytest.mark.parametrize("name", ["consumed_train_samples", "consumed_samples"])
def test_a_position_in_samples_needs_nothing(tmp_path: Path, name: str) -> None:
    state = read(tmp_path / "state.json", json.dumps({"global_step": 1, name: 40, "consumed_batches": 99}))
    assert state.with_batch_size(None).consumed_samples == 40


def test_keys_that_mean_nothing_to_us_are_kept_and_states_are_not_among_them() -> None:
    unknown = {"n_layer": 12, "note": {"$odd": [1, None]}}
    state = TrainerState.from_json({"global_step": 1, "states": {"x": 1}, **unknown})
    assert state.unknown == unknown
    assert unknown.items() <= state.to_json().items()


def test_numbers_of_numpy_are_numbers() -> None:
    state = TrainerState(
        global_step=1,
        last_lr=np.float64(0.1),
        last_loss=np.array(2.5),  # type: ignore[arg-type]
        best_loss=np.float32(0.5),  # type: ignore[arg-type]
        config={"n_layer": np.int64(3)},
    )
    written = json.loads(json.dumps(state.to_json(), allow_nan=False))
    assert (written["last_lr"], written["last_loss"], written["best_loss"]) == (0.1, 2.5, 0.5)
    assert written["config"] == {"n_layer": 3}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"global_step": -1}, "a whole number"),
        ({"global_step": True}, "a whole number"),
        ({"global_step": 1.5}, "a whole number"),
        ({"global_step": None}, "a whole number"),
        ({"consumed_samples": "x"}, "a whole number"),
        ({"consumed_batches": -3}, "a whole number"),
        ({"best_loss": None}, "a number"),
        ({"last_lr": "fast"}, "a number"),
        ({"config": []}, "a map"),
        ({"random": 3}, "a map"),
        ({"optimizer_type": 3}, "text"),
        ({"data_seed": "x"}, "an int"),
        ({"best_loss": {"$float": "big"}}, "not an encoded float"),
        ({"config": {"$tensor": "x"}}, "a tensor 'x'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(CorruptCheckpointError, match=f"{next(iter(change))}.*{said}"):
        TrainerState.from_json({"global_step": 1, **change})


def test_a_state_without_a_step_is_refused() -> None:
    with pytest.raises(CorruptCheckpointError, match="global_step is missing"):
        TrainerState.from_json({"consumed_samples": 3})


@pytest.mark.parametrize("path", STATES[:1], ids=golden_id)
def test_a_file_that_is_cut_anywhere_is_refused_with_the_place(tmp_path: Path, path: Path) -> None:
    data = path.read_bytes().rstrip()
    for size in range(len(data)):
        (tmp_path / "cut.json").write_bytes(data[:size])
        with pytest.raises(CorruptCheckpointError, match="at byte"):
            read_document(tmp_path / "cut.json")


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"a": ' * 100_000, '{"a": 1, "a": 2}', "\ud800"])
def test_what_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(CorruptCheckpointError):
        read_document(tmp_path / "bad.json")


# Nested states


def test_two_paths_that_read_the_same_keep_their_own_tensors() -> None:
    state = {"a.b": {"c": np.zeros(1)}, "a": {"b.c": np.ones(1), "b": {"c": np.full(1, 2)}}}
    tree, tensors = pack(state)
    assert len(tensors) == 3
    again = unpack(json.loads(json.dumps(tree)), lambda name, of_torch: tensors[name])
    assert (again["a.b"]["c"][0], again["a"]["b.c"][0], again["a"]["b"]["c"][0]) == (0, 1, 2)


@pytest.mark.parametrize(
    "tree",
    [
        {"$unknown": 1},
        {"$tuple": {"0": 1}},
        {"$map": [[1, 2, 3]]},
        {"$map": [[[], 2]]},
        {"$array": 3},
        {"$array": "x", "more": 1},
        {"$float": "1"},
    ],
)
def test_what_pack_did_not_make_is_a_value_error(tree: Any) -> None:
    with pytest.raises(ValueError, match="."):
        unpack(tree, lambda name, of_torch: None)


def test_a_state_nested_too_deep_is_refused_both_ways() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(OptionError, match="nested more than"):
        pack(deep)
    with pytest.raises(ValueError, match="nested more than"):
        unpack(deep, lambda name, of_torch: None)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"global_step": -1}, "global_step is -1"),
        ({"global_step": 10**18}, "18 digits"),
        ({"consumed_samples": 16.0}, r"consumed_samples is 16\.0"),
        ({"best_loss": None}, "best_loss is None: a number"),
        ({"optimizer_type": 3}, "optimizer_type is 3: text"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(value: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        TrainerState(**value).to_json()
