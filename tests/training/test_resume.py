"""Resuming: as if the run had never stopped (cases R1 to R9), in every format."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import ckptio
from ckptio import CkptError, OptionError, UnsupportedError
from ckptio.training import CheckpointOptions, TrainerState, resume_checkpoint, save_checkpoint

Begin = Callable[..., Any]
FORMATS = ("statedict", "msgpack", "safetensors", "npz", "torch")


def silent(note: str) -> None:
    pass


def saving(folder: Path, **more: Any) -> CheckpointOptions:
    return CheckpointOptions(checkpoint_dir=folder / "run", save_steps=1, **more)


class Net(nn.Module):
    """Two matrices that share storage, a layer between them, a buffer."""

    mask: torch.Tensor

    def __init__(self, *, tied: bool = True, width: int = 4, reverse: bool = False) -> None:
        super().__init__()
        layers = {"embed": nn.Embedding(10, width), "inner": nn.Linear(width, width)}
        for name in reversed(layers) if reverse else layers:
            self.add_module(name, layers[name])
        self.head = nn.Linear(width, 10, bias=False)
        if tied:
            self.head.weight = self.embedding
        self.register_buffer("mask", torch.ones(3, dtype=torch.int64))

    @property
    def embedding(self) -> nn.Parameter:
        return self.get_parameter("embed.weight")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embed, inner = self.get_submodule("embed"), self.get_submodule("inner")
        return self.head(inner(embed(tokens)))  # type: ignore[no-any-return]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    matrices = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 0.02, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> list[float]:
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, 10, (8,))
        loss = nn.functional.cross_entropy(model(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


# R1: bit-equal to the run that never stopped


@pytest.mark.parametrize("checkpoint_format", FORMATS)
def test_numpy_goes_on_bit_for_bit_and_not_from_a_cold_start(loop: Begin, checkpoint_format: str) -> None:
    whole = loop(checkpoint_format=checkpoint_format)
    for _ in range(3):
        whole.step()
    whole.save()
    wanted = [whole.step() for _ in range(3)]
    resumed = loop(checkpoint_format=checkpoint_format, resume_from="latest")
    assert [resumed.step() for _ in range(3)] == wanted
    assert {name: each.tobytes() for name, each in resumed.model.items()} == {
        name: each.tobytes() for name, each in whole.model.items()
    }
    cold = loop(checkpoint_format=checkpoint_format)
    assert cold.step() != wanted[0]


@pytest.mark.parametrize("checkpoint_format", FORMATS)
def test_torch_goes_on_bit_for_bit_with_groups_and_a_tie(tmp_path: Path, checkpoint_format: str) -> None:
    options = saving(tmp_path, checkpoint_format=checkpoint_format)
    torch.manual_seed(1)
    model = Net()
    optimizer = adam(model)
    resume_checkpoint(options, model, optimizer)
    train(model, optimizer, 3)
    path = save_checkpoint(options, TrainerState(global_step=3), model, optimizer)
    wanted = train(model, optimizer, 3)

    torch.manual_seed(2)
    other = Net()
    cold = train(other, adam(other), 3)
    other = Net()
    other_optimizer = adam(other)
    again = dataclasses.replace(options, resume_from=str(path))
    assert resume_checkpoint(again, other, other_optimizer, notes=silent).optimizer_type == "AdamW"
    assert train(other, other_optimizer, 3) == wanted != cold
    assert other.head.weight is other.embedding
    assert all(torch.equal(each, other.state_dict()[name]) for name, each in model.state_dict().items())
    assert [group["lr"] for group in other_optimizer.param_groups] == [0.01, 0.02]


def test_the_optimizer_is_keyed_by_name_and_tied_parameters_are_there_once(
    tmp_path: Path,
) -> None:
    model = Net()
    optimizer = adam(model)
    train(model, optimizer)
    path = save_checkpoint(saving(tmp_path), TrainerState(global_step=1), model, optimizer)
    names = ("embed.weight", "inner.weight", "inner.bias")
    slots = ("step", "exp_avg", "exp_avg_sq")
    saved = ckptio.load(path / "optimizer.ckpt")
    assert sorted(saved) == sorted(f"{slot}.{name}" for slot in slots for name in names)
    parameters = dict(model.named_parameters())
    for name in names:
        values = optimizer.state[parameters[name]]
        assert all((saved[f"{slot}.{name}"] == values[slot].numpy()).all() for slot in slots)
    groups = json.loads((path / "trainer_state.json").read_text())["states"]["optimizer"]["param_groups"]
    assert [group["params"] for group in groups] == [["embed.weight", "inner.weight"], ["inner.bias"]]


def test_a_state_in_another_dtype_than_its_parameter_keeps_it(tmp_path: Path) -> None:
    model = nn.Linear(3, 2).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    exact = torch.full((2, 3), 1.0 + 2**-20)
    optimizer.state[model.weight] = {"step": torch.tensor(3.0), "exp_avg": exact, "exp_avg_sq": exact * 3}
    path = save_checkpoint(saving(tmp_path), TrainerState(), model, optimizer)
    other = nn.Linear(3, 2).bfloat16()
    restored = torch.optim.AdamW(other.parameters())
    resume_checkpoint(CheckpointOptions(resume_from=str(path)), other, restored, notes=silent)
    assert torch.equal(restored.state[other.weight]["exp_avg"], exact)
    assert restored.state[other.weight]["exp_avg_sq"].dtype == torch.float32


def test_a_format_for_models_alone_has_the_rest_in_statedict(tmp_path: Path) -> None:
    tensors, config = _gpt2()
    optimizer = {"exp_avg": {name: np.full_like(each, 0.5) for name, each in tensors.items()}, "step": 3}
    options = saving(tmp_path, checkpoint_format="llmc")
    given: dict[str, Any] = {"extra": {"ema": {"decay": np.float32(0.9)}}}
    state = resume_checkpoint(options, tensors, optimizer, config=config, **given)
    path = save_checkpoint(options, dataclasses.replace(state, global_step=1), tensors, optimizer, **given)
    assert sorted(each.name for each in path.iterdir() if not each.name.endswith(".meta.json")) == [
        *("ema.ckpt", "manifest.json", "model.bin", "optimizer.ckpt", "trainer_state.json")
    ]
    manifest = json.loads((path / "manifest.json").read_text())
    assert {name: part["format"] for name, part in manifest["parts"].items()} == {
        "model": "llmc",
        "optimizer": "statedict",
        "ema": "statedict",
    }
    fresh, _ = _gpt2(fill=0.0)
    zeros: dict[str, Any] = {
        "exp_avg": {name: np.zeros_like(each) for name, each in tensors.items()},
        "step": 0,
    }
    ema = {"decay": np.float32(0)}
    resume_checkpoint(
        CheckpointOptions(resume_from=str(path)), fresh, zeros, extra={"ema": ema}, notes=silent
    )
    assert all(fresh[name].tobytes() == each.tobytes() for name, each in tensors.items())
    assert zeros["step"] == 3
    assert all((each == 0.5).all() for each in zeros["exp_avg"].values())
    assert ema == {"decay": np.float32(0.9)}


def _gpt2(fill: float | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a GPT-2 of two blocks with a tied head and its masks, as llm.c names it."""
    config = {"n_layer": 2, "n_head": 2, "n_embd": 4, "vocab_size": 5, "block_size": 3}
    shapes: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (5, 4), "transformer.wpe.weight": (3, 4)}
    for layer in ("transformer.h.0.", "transformer.h.1."):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{layer}{norm}.weight": (4,), f"{layer}{norm}.bias": (4,)}
        for name, (rows, columns) in {
            "attn.c_attn": (12, 4),
            "attn.c_proj": (4, 4),
            "mlp.c_fc": (16, 4),
            "mlp.c_proj": (4, 16),
        }.items():
            shapes |= {f"{layer}{name}.weight": (rows, columns), f"{layer}{name}.bias": (rows,)}
    shapes |= {"transformer.ln_f.weight": (4,), "transformer.ln_f.bias": (4,)}
    values = np.random.default_rng(5)
    tensors: dict[str, Any] = {
        name: (values.normal(size=shape) if fill is None else np.full(shape, fill)).astype(np.float32)
        for name, shape in shapes.items()
    }
    for layer in ("transformer.h.0.", "transformer.h.1."):
        tensors[f"{layer}attn.bias"] = np.tril(np.ones((1, 1, 3, 3), np.float32))
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    return tensors, config


# Before step 1


def test_separate_tensors_that_only_start_equal_are_refused_before_step_1(tmp_path: Path) -> None:
    tensors, config = _gpt2()
    tensors["lm_head.weight"] = tensors["lm_head.weight"].copy()
    with pytest.raises(UnsupportedError) as caught:
        resume_checkpoint(saving(tmp_path, checkpoint_format="llmc"), tensors, config=config)
    said = str(caught.value)
    assert "lm_head.weight" in said
    assert "a tensor of its own" in said
    assert "these would do: --checkpoint_format " in said
    assert "msgpack, npz, safetensors, statedict, torch" in said
    assert list((tmp_path / "run").iterdir()) == []
    resume_checkpoint(saving(tmp_path, checkpoint_format="statedict"), tensors, config=config)


def test_a_missing_hyperparameter_is_refused_before_step_1(tmp_path: Path) -> None:
    tensors, config = _gpt2()
    del config["n_head"]
    with pytest.raises(UnsupportedError, match="n_head"):
        resume_checkpoint(saving(tmp_path, checkpoint_format="llmc"), tensors, config=config)


def test_a_dtype_that_the_format_lacks_is_refused_before_step_1_and_others_are_named(tmp_path: Path) -> None:
    model = {"a": np.zeros(2, np.complex64), "b": np.zeros(2, ml_dtypes.float8_e5m2)}
    with pytest.raises(UnsupportedError, match="these would do: .*msgpack") as caught:
        resume_checkpoint(saving(tmp_path), model)
    assert all(f"model: {name}" in str(caught.value) for name in model)


# R2: without the optimizer's state


def test_a_checkpoint_without_optimizer_state_is_resumed_with_one_only_when_told_so(loop: Begin) -> None:
    run = loop(save_optimizer_state=False)
    run.step()
    path = run.save()
    assert not list(path.glob("optimizer.*"))
    with pytest.raises(UnsupportedError, match="saved without its state") as caught:
        loop(resume_from="latest")
    assert "--save_optimizer_state false" in str(caught.value)
    for resumed in (
        loop(resume_from="latest", save_optimizer_state=False),
        loop(resume_from="latest", resuming={"allow": {"optimizer"}}),
    ):
        assert resumed.state.global_step == 1
        assert resumed.model["w"].tobytes() == run.model["w"].tobytes()
        assert resumed.optimizer["step"] == 0
        assert any("without the saved state of optimizer" in note for note in resumed.notes)


def test_positional_optimizers_of_other_programs_are_not_guessed_at(loop: Begin) -> None:
    run = loop()
    run.step()
    path = run.save()
    (path / "manifest.json").unlink()
    document = json.loads((path / "trainer_state.json").read_text())
    del document["states"]
    (path / "trainer_state.json").write_text(json.dumps(document))
    with pytest.raises(UnsupportedError, match="not by the names of the parameters"):
        loop(resume_from="latest")
    assert loop(resume_from="latest", resuming={"allow": {"optimizer"}}).state.global_step == 1


def test_another_kind_of_optimizer_is_told_so(tmp_path: Path) -> None:
    model = Net()
    path = save_checkpoint(saving(tmp_path), TrainerState(), model, adam(model))
    with pytest.raises(UnsupportedError, match="SGD here, AdamW in the checkpoint"):
        resume_checkpoint(
            CheckpointOptions(resume_from=str(path)), model, torch.optim.SGD(model.parameters())
        )


# R3: by name


def test_parameters_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Net()
    optimizer = adam(model)
    train(model, optimizer, 2)
    path = save_checkpoint(saving(tmp_path), TrainerState(), model, optimizer)
    wanted = train(model, optimizer, 2)
    other = Net(reverse=True)
    assert list(other.state_dict()) != list(model.state_dict())
    swapped = adam(other)
    swapped.param_groups.reverse()
    resume_checkpoint(CheckpointOptions(resume_from=str(path)), other, swapped, notes=silent)
    assert train(other, swapped, 2) == wanted


def test_groups_without_parameters_keep_their_own_values(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)

    def made(rates: list[float]) -> Any:
        groups = [list(model.parameters()), *([] for _ in rates[1:])]
        return torch.optim.SGD(
            [{"params": group, "lr": rate} for group, rate in zip(groups, rates, strict=True)]
        )

    options = CheckpointOptions(checkpoint_dir=tmp_path / "run", save_steps=1)
    save_checkpoint(options, TrainerState(global_step=1), model, made([0.1, 0.2, 0.3]))
    again = CheckpointOptions(resume_from=str(tmp_path / "run"))
    optimizer = made([1, 1, 1])
    resume_checkpoint(again, model, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2, 0.3]
    with pytest.raises(UnsupportedError, match="parameter groups"):
        resume_checkpoint(again, model, made([1, 1]))


def test_a_parameter_more_or_less_is_listed_by_name(tmp_path: Path) -> None:
    model = Net()
    optimizer = adam(model)
    train(model, optimizer)
    path = save_checkpoint(saving(tmp_path), TrainerState(), model, optimizer)
    model.add_module("more", nn.Linear(2, 2))
    del model.mask
    with pytest.raises(UnsupportedError, match="nothing was loaded") as caught:
        resume_checkpoint(CheckpointOptions(resume_from=str(path)), model, adam(model))
    lines = str(caught.value).splitlines()
    for name in ("more.weight", "more.bias"):
        assert any(f"  {name}: in the model" in line and "not in the checkpoint" in line for line in lines)
        assert any(f"optimizer: {name}: in the optimizer, not in the checkpoint" in line for line in lines)
    assert any("  mask: in the checkpoint (i64 (3,)), not in the model" in line for line in lines)


def test_a_parameter_that_the_model_does_not_have_cannot_be_saved(tmp_path: Path) -> None:
    model = Net()
    stranger = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(7, 3))], momentum=0.9)
    with pytest.raises(OptionError, match=r"\(7, 3\)"):
        save_checkpoint(saving(tmp_path), TrainerState(), model, stranger)


# R4: schedules


def test_the_learning_rates_are_those_of_the_unbroken_run(tmp_path: Path) -> None:
    def begin() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = Net()
        optimizer = adam(model)
        return model, optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 7, 7], gamma=0.1)

    def go_on(optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return rates

    model, optimizer, schedule = begin()
    unbroken = go_on(*begin()[1:], 10)
    first = go_on(optimizer, schedule, 4)
    path = save_checkpoint(
        saving(tmp_path), TrainerState(global_step=4), model, optimizer, extra={"schedule": schedule}
    )
    other, restored, its_schedule = begin()
    resume_checkpoint(
        CheckpointOptions(resume_from=str(path)),
        other,
        restored,
        extra={"schedule": its_schedule},
        notes=silent,
    )
    rates = first + go_on(restored, its_schedule, 6)
    assert rates == unbroken
    assert rates == pytest.approx([0.01] * 5 + [0.001] * 2 + [0.00001] * 3)


# R5: extra states and random generators


@pytest.mark.parametrize("checkpoint_format", FORMATS)
def test_extra_states_come_back_exactly(tmp_path: Path, checkpoint_format: str) -> None:
    generator, torch_generator = np.random.default_rng(9), torch.Generator().manual_seed(9)
    ema = nn.Linear(2, 2)
    values = {
        "scale": 256.0,
        "bound": math.inf,
        "undefined": math.nan,
        "pair": (1, [2, "three", None, True]),
        "by_number": {3: b"bytes", (1, 2): -0.0},
        "array": np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2],
        "nested": {
            "tensor": torch.arange(3, dtype=torch.bfloat16),
            "a.b": np.ones(1),
            "a": {"b": np.zeros(1)},
        },
    }
    extra: dict[str, Any] = {
        "scaler": values,
        "generator": generator,
        "of_torch": torch_generator,
        "ema": ema,
    }
    options = saving(tmp_path, checkpoint_format=checkpoint_format)
    path = save_checkpoint(options, TrainerState(), {"w": np.zeros(1)}, extra=extra)
    wanted = generator.normal(size=3), torch.rand(3, generator=torch_generator)
    empty: dict[str, Any] = {"gone": 1}
    other: dict[str, Any] = {
        "scaler": empty,
        "generator": np.random.default_rng(1),
        "of_torch": torch.Generator(),
        "ema": nn.Linear(2, 2),
    }
    resume_checkpoint(CheckpointOptions(resume_from=str(path)), {"w": np.ones(1)}, extra=other, notes=silent)
    assert list(empty) == list(values)
    assert (empty["scale"], empty["bound"], empty["pair"]) == (256.0, math.inf, (1, [2, "three", None, True]))
    assert math.isnan(empty["undefined"])
    assert empty["by_number"] == {3: b"bytes", (1, 2): 0.0}
    assert math.copysign(1, empty["by_number"][1, 2]) == -1
    assert empty["array"].dtype == np.int16
    assert empty["array"].tolist() == [[0, 2], [3, 5]]
    assert torch.equal(empty["nested"]["tensor"], torch.arange(3, dtype=torch.bfloat16))
    assert (empty["nested"]["a.b"][0], empty["nested"]["a"]["b"][0]) == (1.0, 0.0)
    assert (other["generator"].normal(size=3) == wanted[0]).all()
    assert torch.equal(torch.rand(3, generator=other["of_torch"]), wanted[1])
    assert torch.equal(other["ema"].weight, ema.weight)


@pytest.mark.parametrize("kind", [random.Random, np.random.RandomState, np.random.default_rng])
def test_a_generator_of_one_s_own_is_an_extra_state(loop: Begin, kind: Callable[[int], Any]) -> None:
    def draw(generator: Any) -> list[float]:
        numbers = (generator.gauss(0, 1) if kind is random.Random else generator.normal() for _ in range(3))
        return [float(each) for each in numbers]

    own = kind(3)
    draw(own)
    loop().save(extra={"own": own})
    wanted = draw(own)
    other = kind(4)
    loop(resume_from="latest", resuming={"extra": {"own": other}})
    assert draw(other) == wanted


def test_the_random_generators_go_on_where_they_were(loop: Begin) -> None:
    def draw() -> list[Any]:
        here = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]
        return [*here, torch.rand(()).item(), torch.randn(()).item()]

    draw()  # leaves the second value of a pair of Gaussians behind
    run = loop()
    run.save()
    wanted = [draw() for _ in range(3)]
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    loop(resume_from="latest")
    assert [draw() for _ in range(3)] == wanted


def test_an_extra_state_that_was_not_saved_is_told_so(loop: Begin) -> None:
    run = loop()
    run.save(extra={"old": {"x": 1}})
    with pytest.raises(UnsupportedError, match="new: this extra state is not in the checkpoint"):
        loop(resume_from="latest", resuming={"extra": {"new": {"x": 1}}})
    new = {"x": 2}
    resumed = loop(resume_from="latest", resuming={"extra": {"new": new}, "allow": {"extra"}})
    assert new == {"x": 2}
    assert any("asked for by nobody: old" in note for note in resumed.notes)


@pytest.mark.parametrize("name", ["model", "optimizer", "manifest", "trainer_state", "a/b", "", "..", "x.y"])
def test_a_name_that_no_extra_state_can_have_is_refused(loop: Begin, name: str) -> None:
    with pytest.raises(OptionError, match="extra state"):
        loop().save(extra={name: {"x": 1}})


def test_what_is_no_state_is_refused_by_its_path(loop: Begin) -> None:
    with pytest.raises(OptionError, match=r"inner\.0: set"):
        loop().save(extra={"x": {"inner": [{1, 2}]}})
    with pytest.raises(OptionError, match="is int"):
        loop().save(extra={"x": 3})


# R6, R7: the position in the data


def test_no_sample_is_seen_twice_or_left_out(loop: Begin) -> None:
    seen: list[int] = []
    for samples in (20, 10, 34):
        run = loop(resume_from="latest")
        for _ in range(samples // 2):
            run.step()
        run.save()
        seen += run.seen
    assert seen == list(range(64))


def test_the_position_is_kept_in_samples_whatever_the_batch_size(loop: Begin) -> None:
    run = loop()
    for _ in range(10):
        run.step(batch_size=4)
    run.save()
    resumed = loop(resume_from="latest")
    assert (resumed.state.consumed_samples, resumed.state.batches(8)) == (40, 5)
    resumed.step(batch_size=8)
    assert resumed.seen == list(range(40, 48))


# R8: numbers


@pytest.mark.parametrize("best", [math.inf, -math.inf, math.nan, 0.1 + 0.2, -0.0, 5e-324])
def test_numbers_come_back_to_the_last_bit_in_valid_json(loop: Begin, best: float) -> None:
    run = loop()
    run.state = dataclasses.replace(run.state, last_lr=0.000123456789, last_loss=best, best_loss=best)
    path = run.save()

    def no_constant(text: str) -> None:
        raise AssertionError(text)

    json.loads((path / "trainer_state.json").read_text(), parse_constant=no_constant)
    state = loop(resume_from="latest").state
    assert state.last_lr == 0.000123456789
    for found in (state.best_loss, state.last_loss):
        assert struct.pack("<d", found) == struct.pack("<d", best)


# R9: another model


def test_every_difference_is_in_one_message_and_nothing_is_loaded(tmp_path: Path) -> None:
    path = save_checkpoint(saving(tmp_path), TrainerState(), Net())
    other = Net(width=6)
    before = {name: each.clone() for name, each in other.state_dict().items()}
    with pytest.raises(UnsupportedError) as caught:
        resume_checkpoint(CheckpointOptions(resume_from=str(path)), other)
    said = str(caught.value)
    assert "embed.weight: f32 (10, 6) in the model, f32 (10, 4) in the checkpoint" in said
    assert "inner.weight: f32 (6, 6) in the model, f32 (4, 4) in the checkpoint" in said
    assert "inner.bias: f32 (6,) in the model, f32 (4,) in the checkpoint" in said
    assert all(torch.equal(each, before[name]) for name, each in other.state_dict().items())


def test_another_dtype_is_a_difference_too(tmp_path: Path) -> None:
    path = save_checkpoint(saving(tmp_path), TrainerState(), Net())
    with pytest.raises(UnsupportedError, match=r"inner.bias: bf16 \(4,\) in the model, f32 \(4,\)"):
        resume_checkpoint(CheckpointOptions(resume_from=str(path)), Net().bfloat16())


# Ties


@pytest.mark.parametrize("checkpoint_format", FORMATS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_tie_that_only_one_side_has_is_told_so(tmp_path: Path, checkpoint_format: str, tied: bool) -> None:
    saved = Net(tied=tied)
    with torch.no_grad():
        saved.head.weight.copy_(saved.embedding)
    options = saving(tmp_path, checkpoint_format=checkpoint_format)
    path = save_checkpoint(options, TrainerState(), saved)
    resuming = CheckpointOptions(resume_from=str(path))
    with pytest.raises(UnsupportedError, match="embed.weight and head.weight: tied in the"):
        resume_checkpoint(resuming, Net(tied=not tied))
    other = Net(tied=not tied)
    resume_checkpoint(resuming, other, allow={"ties"}, notes=silent)
    assert torch.equal(other.head.weight, saved.head.weight)
    assert torch.equal(other.embedding, saved.head.weight)


def test_two_different_tensors_never_become_one(tmp_path: Path) -> None:
    path = save_checkpoint(saving(tmp_path), TrainerState(), Net(tied=False))
    for allow in ((), {"ties"}):
        with pytest.raises(UnsupportedError, match="two different tensors in the checkpoint"):
            resume_checkpoint(CheckpointOptions(resume_from=str(path)), Net(), allow=allow)


def test_arrays_of_numpy_that_share_memory_are_ties(tmp_path: Path) -> None:
    shared = np.arange(6.0)
    path = save_checkpoint(saving(tmp_path), TrainerState(), {"a": shared, "b": shared, "c": shared.copy()})
    assert json.loads((path / "trainer_state.json").read_text())["states"]["model"]["ties"] == {"b": "a"}
    with pytest.raises(UnsupportedError, match="a and b"):
        resume_checkpoint(
            CheckpointOptions(resume_from=str(path)), {name: np.zeros(6) for name in ("a", "b", "c")}
        )


# Models in other clothes


def test_arrays_are_filled_in_place_whatever_their_strides(tmp_path: Path) -> None:
    values = np.random.default_rng(2).normal(size=(4, 6))
    saved = {"plain": values, "turned": values.T, "every": values[:, ::2], "scalar": np.array(3.5)}
    path = save_checkpoint(saving(tmp_path), TrainerState(), {**saved, "nested": {"b": values[0]}})
    base = np.zeros((4, 12))
    target: dict[str, Any] = {
        "plain": np.zeros((4, 6)),
        "turned": np.zeros((6, 4), order="F"),
        "every": base[:, ::4],
        "scalar": np.array(0.0),
        "nested": {"b": np.zeros(6)},
    }
    held = dict(target)
    resume_checkpoint(CheckpointOptions(resume_from=str(path)), target, notes=silent)
    assert all(target[name] is held[name] for name in held)
    assert all((target[name] == each).all() for name, each in saved.items())
    assert (target["nested"]["b"] == values[0]).all()
    assert (base[:, 1::4] == 0).all()


def test_a_module_with_plain_values_in_its_state_gets_them_back(tmp_path: Path) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.seen = 0

        def get_extra_state(self) -> dict[str, int]:
            return {"seen": self.seen}

        def set_extra_state(self, state: dict[str, int]) -> None:
            self.seen = state["seen"]

    model = Counting()
    model.seen = 17
    path = save_checkpoint(saving(tmp_path), TrainerState(), model)
    other = Counting()
    resume_checkpoint(CheckpointOptions(resume_from=str(path)), other, notes=silent)
    assert other.seen == 17


def test_the_format_may_change_from_one_save_to_the_next(loop: Begin) -> None:
    run = loop()
    losses = [run.step()]
    for checkpoint_format in FORMATS:
        run.options = dataclasses.replace(run.options, checkpoint_format=checkpoint_format)
        run.save()
        losses.append(run.step())
    again = loop()
    assert [again.step() for _ in losses] == losses
    assert loop(resume_from="latest").state.checkpoint_format == FORMATS[-1]


def test_shards_are_a_directory_in_the_step(tmp_path: Path) -> None:
    options = saving(tmp_path, checkpoint_format="safetensors", format_options={"max_shard_size": "100"})
    model = {name: np.full(20, number, np.float32) for number, name in enumerate("abc")}
    path = save_checkpoint(options, TrainerState(global_step=1), model)
    assert len(list((path / "model").glob("*.safetensors"))) == 3
    other = {name: np.zeros(20, np.float32) for name in "abc"}
    resume_checkpoint(dataclasses.replace(options, resume_from="latest"), other, verify=True, notes=silent)
    assert [other[name][0] for name in "abc"] == [0, 1, 2]


def test_a_hyperparameter_that_no_shape_shows_is_named(loop: Begin) -> None:
    run = loop({"config": {"n_head": 4, "n_embd": 2}})
    run.save_as(1)
    assert not any(
        "configuration" in note for note in loop({"config": {"n_head": 4}}, resume_from="latest").notes
    )
    other = loop({"config": {"n_head": 2, "n_embd": 2}}, resume_from="latest")
    assert other.state.config["n_head"] == 2
    assert any("n_head 2 here, 4 in the checkpoint" in note and "n_embd" not in note for note in other.notes)


def test_an_unknown_word_in_allow_is_refused(loop: Begin) -> None:
    with pytest.raises(OptionError, match="optimizer, extra, ties"):
        loop(resuming={"allow": {"optimiser"}})


@pytest.mark.parametrize("seed", range(30))
def test_a_trainer_state_of_any_kind_is_refused_or_read(loop: Begin, seed: int) -> None:
    run = loop()
    run.step()
    path = run.save()
    document = json.loads((path / "trainer_state.json").read_text())
    chosen = random.Random(seed)
    node: Any = document
    while isinstance(node, dict) and node:
        key = chosen.choice(list(node))
        if not isinstance(node[key], dict) or not node[key] or chosen.random() < 0.2:
            node[key] = chosen.choice([None, -1, [], {}, {"$tensor": "x"}, {"$map": [1]}, "x", {"$tuple": 3}])
            break
        node = node[key]
    (path / "manifest.json").unlink()
    (path / "trainer_state.json").write_text(json.dumps(document))
    with contextlib.suppress(CkptError):
        loop(resume_from=str(path))


def test_plain_arrays_need_no_torch(tmp_path: Path) -> None:
    program = """
import sys
import numpy as np
from ckptio.training import CheckpointOptions, TrainerState, resume_checkpoint, save_checkpoint
options = CheckpointOptions(checkpoint_dir=sys.argv[1], save_steps=1)
model, optimizer = {"w": np.ones(3)}, {"exp_avg": {"w": np.zeros(3)}}
path = save_checkpoint(options, TrainerState(global_step=1), model, optimizer)
resume_checkpoint(CheckpointOptions(resume_from=path), model, optimizer)
assert "torch" not in sys.modules
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "run"], capture_output=True, text=True, check=True
    )
    assert "resumed from" in ended.stderr
    assert ended.stdout == ""
