"""Folders that transformers loads: its logits, llm.c's bytes and InfiniTrain's losses are the oracle."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ckptio
from ckptio import OptionError, UnsupportedError
from ckptio.cli import main
from golden import DATA, golden
from hub import run_folder, to_folder
from independent_llmc import GPT2, read_llmc

LLAMA_SCALED = "llmc_llama3/llama3_L2H4KV2C32V96T16_masterlayout"
LLMC = (
    "llmc_gpt2/gpt2_L2H2C32V97T16",
    "llmc_gpt2/gpt2_L2H12C48V97T32",
    LLAMA_SCALED,
    "llmc_llama3/llama3_L4H4KV2C16V96T16_branchlayout",
)
RUNS = (("gpt2_sgd", 12, 1e-5), ("gpt2_adam", 2, 1e-5), ("llama3_adam", 4, 2e-5))
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


def relative(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("model", LLMC, ids=lambda model: model.partition("/")[2])
def test_a_model_of_llmc_gives_its_logits_in_transformers_and_comes_back(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = golden(f"{model}_fp32.bin")
    report = to_folder(source, tmp_path / "out")
    assert any("no tokenizer" in note for note in report.notes)
    with np.load(golden(f"{model}_io.npz")) as io:
        assert relative(run_folder(tmp_path / "out", io["x"], caplog), io["logits"]) < 1e-5
    ckptio.convert(tmp_path / "out", tmp_path / "back.bin", checkpoint_format="llmc")
    assert (tmp_path / "back.bin").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("kind", ["master", "branch"])
def test_a_llama_of_transformers_has_the_bytes_that_llmc_makes_of_it(kind: str, tmp_path: Path) -> None:
    folder = golden("hf/llama_fp32_sharded/config.json").parent
    ckptio.convert(folder, tmp_path / "a.bin", checkpoint_format="llmc", options={"layout": kind})
    expected = golden(f"llmc_llama3/fromHF_llama_fp32_{kind}layout.bin")
    assert (tmp_path / "a.bin").read_bytes() == expected.read_bytes()


@pytest.mark.parametrize(
    ("name", "middle"),
    [
        ("gpt2_fp32_single", "llmc"),
        ("gpt2_bf16_sharded", "infinitrain"),
        ("llama_fp32_sharded", "llmc"),
        ("llama_tied_fp16_sharded", "infinitrain"),
    ],
)
def test_a_folder_goes_to_another_program_and_comes_back(
    name: str, middle: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = golden(f"hf/{name}/config.json").parent
    ckptio.convert(folder, tmp_path / "a.ckpt", checkpoint_format="statedict", layout=middle)
    to_folder(tmp_path / "a.ckpt", tmp_path / "out")
    with np.load(golden(f"hf/{name}.truth.npz")) as truth:
        found = ckptio.load(tmp_path / "out")
        assert found.keys() | {"lm_head.weight"} == set(truth.files) | {"lm_head.weight"}
        for each in found.keys() & set(truth.files):
            # The truth of bf16 is kept as f32.
            np.testing.assert_array_equal(found[each].astype(truth[each].dtype), truth[each], err_msg=each)
    theirs = json.loads((folder / "config.json").read_bytes())
    ours = json.loads((tmp_path / "out/config.json").read_bytes())
    same = ("model_type", "architectures", "vocab_size", "tie_word_embeddings", "dtype")
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    with np.load(golden(f"hf/{name}.io.npz")) as io:
        logits = run_folder(tmp_path / "out", io["input_ids"], caplog)
        np.testing.assert_array_equal(logits, run_folder(folder, io["input_ids"], caplog))
        # The recorded logits of the GPT-2 are with dropout.
        if "llama" in name:
            assert relative(logits, io["logits_fp32"]) < 2e-5


@pytest.mark.parametrize(("run", "n_head", "tolerance"), RUNS, ids=[run for run, _, _ in RUNS])
def test_a_model_of_infinitrain_has_the_next_loss_of_its_run(
    run: str, n_head: int, tolerance: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = f"infinitrain/runs/{run}"
    model = golden(f"{base}/ckpt/checkpoint_step_000002/model.ckpt")
    to_folder(model, tmp_path / "out", config={"n_head": n_head})
    about = json.loads(golden(f"{base}/run.json").read_bytes())
    length = int(re.findall(r"--sequence_length=(\d+)", about["args"])[0])
    count = int(re.findall(r"--total_batch_size=(\d+)", about["args"])[0]) // length
    raw = golden(about["tokens"]).read_bytes()
    wide = raw[4:8] == (7).to_bytes(4, "little")
    tokens = np.frombuffer(raw[1024:], np.uint32 if wide else np.uint16).astype(np.int64)
    # After step 2, training goes on with the third batch.
    starts = [sample * length for sample in range(2 * count, 3 * count)]
    x = np.stack([tokens[start : start + length] for start in starts])
    y = np.stack([tokens[start + 1 : start + length + 1] for start in starts])
    logits = run_folder(tmp_path / "out", x, caplog).astype(np.float64)
    normal = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.take_along_axis(normal, y[..., None], -1).mean()
    log = golden(f"{base}/noresume.losses").read_text()
    (expected,) = re.findall(r"step +3/\d+ \| train loss (\S+)", log)
    assert loss == pytest.approx(float(expected), rel=tolerance)


def test_a_lora_is_refused_with_its_names(tmp_path: Path) -> None:
    model = golden("infinitrain/runs/gpt2_lora/ckpt/checkpoint_step_000002/model.ckpt")
    with pytest.raises(UnsupportedError, match=r"lora_A") as refused:
        to_folder(model, tmp_path / "out", config={"n_head": 2})
    assert "lora_B" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_head_count_is_asked_for(tmp_path: Path) -> None:
    model = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt")
    with pytest.raises(UnsupportedError, match="--config n_head="):
        to_folder(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_shards_tokenizer_and_generation_config_go_along(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to_folder(golden(f"{LLAMA_SCALED}_fp32.bin"), tmp_path / "one")
    for name in TOKENIZER:
        (tmp_path / "one" / name).write_text(f"{name} of the model")
    (tmp_path / "one/generation_config.json").write_text('{"max_new_tokens": 3}')
    (tmp_path / "one/notes.txt").write_text("not part of a model")
    (tmp_path / "two").mkdir()
    (tmp_path / "two/mine.txt").write_text("mine")
    (tmp_path / "two/config.json").write_text("{}")
    for dtype in ("f32", "bf16"):
        report = to_folder(
            tmp_path / "one",
            tmp_path / "two",
            options={"max_shard_size": "40KB"},
            dtype=dtype,
            overwrite=True,
        )
        assert report.notes == ()
    names = {path.name for path in (tmp_path / "two").iterdir()}
    shards = {name for name in names if name.endswith(".safetensors")}
    assert len(shards) > 1
    assert names - shards == {
        "config.json",
        "generation_config.json",
        "mine.txt",
        "model.safetensors.index.json",
        *TOKENIZER,
    }
    for name in (*TOKENIZER, "generation_config.json"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    old, new = (json.loads((tmp_path / each / "config.json").read_bytes()) for each in ("one", "two"))
    assert new == {**old, "dtype": "bfloat16"}
    with np.load(golden(f"{LLAMA_SCALED}_io.npz")) as io:
        assert relative(run_folder(tmp_path / "two", io["x"], caplog), io["logits"]) < 0.05


@pytest.mark.parametrize(
    ("vocab", "block_size", "width"),
    [(97, 128, 8), (128, 128, 8), (128, 8, 128), (100, 16, 128), (130, 256, 8)],
)
def test_padding_is_of_the_embedding_by_name_whatever_its_size(
    vocab: int, block_size: int, width: int, tmp_path: Path
) -> None:
    shapes = {
        "transformer.wte.weight": (vocab, width),
        "transformer.wpe.weight": (block_size, width),
        "transformer.ln_f.weight": (width,),
        "transformer.ln_f.bias": (width,),
    }
    sizes = {"C": width, "3C": 3 * width, "4C": 4 * width}
    for name, dims in (row.split() for row in GPT2):
        shapes["transformer.h.0." + name] = tuple(sizes[dim] for dim in dims.split(","))
    arrays = {
        name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in shapes.items()
    }
    ckptio.save(arrays, tmp_path / "a.safetensors")
    ckptio.convert(
        tmp_path / "a.safetensors", tmp_path / "a.bin", checkpoint_format="llmc", config={"n_head": 2}
    )
    to_folder(tmp_path / "a.bin", tmp_path / "out")
    found = ckptio.load(tmp_path / "out")
    turned = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array.T if name.endswith(turned) else array, err_msg=name)
    ckptio.convert(tmp_path / "out", tmp_path / "b.bin", checkpoint_format="llmc")
    words, _, stored = read_llmc(tmp_path / "b.bin")
    assert words[2:8] == (block_size, vocab, 1, 2, width, -(-vocab // 128) * 128)
    assert stored == {name: (array.shape, array.tobytes()) for name, array in arrays.items()}


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module."])
def test_prefixes_are_taken_off_and_a_collision_is_refused(prefix: str, tmp_path: Path) -> None:
    with np.load(golden("hf/llama_fp32_sharded.truth.npz")) as truth:
        arrays = dict(truth)
    wrapped = {prefix + name: array for name, array in arrays.items()}
    ckptio.save(wrapped, tmp_path / "wrapped.safetensors")
    source = str(tmp_path / "wrapped.safetensors")
    config = {"n_head": 4, "rope_theta": 1e4, "use_scaled_rope": False, "norm_eps": 1e-6, "block_size": 16}
    flags = [f"--config={key}={value}" for key, value in config.items()]
    flags += [f"--strip_prefix={prefix}", "--source_layout=hf", "--layout=llmc", "--checkpoint_format=llmc"]
    assert main(["convert", source, str(tmp_path / "a.bin"), *flags]) == 0
    expected = golden("llmc_llama3/fromHF_llama_fp32_masterlayout.bin").read_bytes()
    assert (tmp_path / "a.bin").read_bytes() == expected

    wrapped["model.norm.weight"] = arrays["model.norm.weight"]
    ckptio.save(wrapped, tmp_path / "twice.safetensors")
    for given, words in ((prefix, f"taken already: {prefix}model.norm.weight"), ("x.", "matches no tensor")):
        with pytest.raises(OptionError, match=re.escape(words)):
            ckptio.convert(tmp_path / "twice.safetensors", tmp_path / "b.safetensors", strip_prefix=given)


def test_a_folder_of_torch_is_read_with_its_config(tmp_path: Path) -> None:
    import torch

    with np.load(golden("hf/llama_fp32_sharded.truth.npz")) as truth:
        tensors = {name: torch.from_numpy(truth[name]) for name in truth.files}
    folder = tmp_path / "in"
    folder.mkdir()
    torch.save(tensors, folder / "pytorch_model.bin")
    config = golden("hf/llama_fp32_sharded/config.json").read_bytes()
    (folder / "config.json").write_bytes(config)
    with ckptio.open(folder) as checkpoint:
        assert checkpoint.metadata["config"] == json.loads(config)
    ckptio.convert(folder, tmp_path / "a.bin", checkpoint_format="llmc")
    expected = golden("llmc_llama3/fromHF_llama_fp32_masterlayout.bin")
    assert (tmp_path / "a.bin").read_bytes() == expected.read_bytes()


def test_a_step_with_an_optimizer_stays_in_the_layout_of_its_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt").parent
    flags = ["--checkpoint_format=safetensors", "--layout=hf", "--config=n_head=2"]
    assert main(["convert", str(step), str(tmp_path / "out"), *flags]) == 1
    assert "convert the model alone" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_odd_config_is_left_out_with_a_warning(tmp_path: Path) -> None:
    to_folder(golden(f"{LLAMA_SCALED}_fp32.bin"), tmp_path / "out")
    for content in (b"", b"[]", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"[" * 10**5, b"\xff"):
        (tmp_path / "out/config.json").write_bytes(content)
        with (
            pytest.warns(UserWarning, match="ignored: .*config.json"),
            ckptio.open(tmp_path / "out") as found,
        ):
            assert "config" not in found.metadata


@pytest.mark.parametrize("target", ["a.gguf", "a.ckpt"])
def test_a_config_comes_back_with_what_only_transformers_knows(target: str, tmp_path: Path) -> None:
    source = DATA / "llama_cpp" / "llama"
    layout = "gguf" if target == "a.gguf" else "infinitrain"
    ckptio.convert(source, tmp_path / target, layout=layout)
    ckptio.convert(tmp_path / target, f"{tmp_path}/back/", layout="hf")
    before, after = (json.loads((path / "config.json").read_text()) for path in (source, tmp_path / "back"))
    rope = before.pop("rope_parameters")
    assert (rope.pop("rope_theta"), rope) == (after["rope_theta"], after["rope_scaling"])
    known = {key: value for key, value in before.items() if value is not None}
    del known["transformers_version"], known["head_dim"]
    assert known.items() <= after.items()


def test_a_directory_without_a_flag_is_one_of_safetensors(tmp_path: Path) -> None:
    ckptio.convert(golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin"), f"{tmp_path}/out/", layout="hf")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors"}
    with pytest.raises(ckptio.FormatError, match="that of no installed format"):
        ckptio.convert(golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin"), tmp_path / "file", layout="hf")


def test_a_checkpoint_of_a_training_script_is_told_how_to_pass(tmp_path: Path) -> None:
    import torch

    model = {f"_orig_mod.{name}": tensor for name, tensor in gpt2_state().items()}
    torch.save({"model": model, "iter_num": 100, "best": torch.tensor(1.5)}, tmp_path / "ckpt.pt")
    with pytest.raises(UnsupportedError) as caught:
        ckptio.convert(tmp_path / "ckpt.pt", f"{tmp_path}/out/", layout="hf")
    prefix = "model/_orig_mod."
    assert caught.value.problems[-1].what.endswith(f"pass --select '{prefix}*' --strip_prefix {prefix}")
    how: dict[str, Any] = {"select": [f"{prefix}*"], "strip_prefix": prefix, "config": {"n_head": 2}}
    report = ckptio.convert(tmp_path / "ckpt.pt", f"{tmp_path}/out/", layout="hf", **how)
    actions = {each.name: each.actions for each in report.fates}
    assert actions[f"{prefix}transformer.h.0.attn.bias"] == ("derived",)
    assert actions["iter_num"] == actions["best"] == ("dropped",)
    wte = ckptio.load(tmp_path / "out")["transformer.wte.weight"]
    assert (wte == gpt2_state()["transformer.wte.weight"].numpy()).all()


def gpt2_state() -> dict[str, Any]:
    """Return the state dict of a GPT-2 as PyTorch has it, masks and tied head included."""
    import torch

    source = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt")
    return {name: torch.from_numpy(array) for name, array in ckptio.load(source).items()}


def test_a_buffer_of_older_programs_is_named_with_the_way_around_it(tmp_path: Path) -> None:
    arrays = ckptio.load(DATA / "llama_cpp" / "llama")
    old = {**arrays, "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    ckptio.save(old, tmp_path / "old.safetensors")
    config = {"n_head": 6, "norm_eps": 1e-5, "rope_theta": 5e5, "block_size": 64}
    with pytest.raises(UnsupportedError, match=r"--drop '\*\.rotary_emb\.inv_freq' leaves it out"):
        ckptio.convert(tmp_path / "old.safetensors", tmp_path / "a.gguf", layout="gguf", config=config)
    how: dict[str, Any] = {"layout": "gguf", "config": config, "drop": ["*.rotary_emb.inv_freq"]}
    ckptio.convert(tmp_path / "old.safetensors", tmp_path / "a.gguf", **how)


def test_the_dtype_of_a_folder_is_that_of_most_elements(tmp_path: Path) -> None:
    # Ten of its fourteen tensors are f32 norms, biases and positions.
    ckptio.convert(DATA / "llama_cpp" / "gpt2.f16.gguf", f"{tmp_path}/out/", layout="hf")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float16"
