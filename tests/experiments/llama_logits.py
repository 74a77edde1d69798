"""The logits of llama.cpp on GGUF files that ckptio makes, against those of the models they were made of.

Usage: ``python tests/experiments/llama_logits.py GOLDEN [--types f32 f16 bf16 q8_0 …]``

Needs llama-cpp-python beside torch, transformers and gguf. GOLDEN is the folder of all golden files; from
it come models of transformers and of llm.c, and some more are made at random (6 heads of queries and 2 of
keys, biases, tied and untied heads). Each becomes a GGUF file of each type, which llama.cpp runs in a
process of its own, as it may abort.

Differences are told relative to the largest logit. *rounding* is what the type costs: transformers with
weights rounded to it against the original logits (for llm.c, its own). *largest* and *median* are what
llama.cpp has, over the positions, against transformers with those weights, where the inputs of each product
are rounded as ggml rounds them, and GPT-2's gelu passes through its table of f16. Only the order of sums is
left, which now and then rounds one input the other way. So the largest may be what all the rounding costs
together, or a few units in the last place of an f32; the exit status is 1 where it is more. Where no input
was rounded the other way, at most positions, the two are equal to such a few units.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ckptio

Array = npt.NDArray[Any]

PLAIN = ("f32", "f16", "bf16")
QUANTISED = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4")
FEW_UNITS = 2e-6
"""Of an f32, relative to the largest logit: what is left to the order of sums."""
_PROCESSES = multiprocessing.get_context("spawn")
_GELU_LIMIT = 10.0
"""Beyond it, ggml's gelu is the identity or zero, without its table."""


@dataclass(frozen=True)
class Model:
    """A checkpoint, a folder of transformers with the same weights, tokens, and logits if they are known."""

    name: str
    source: Path
    folder: Path
    tokens: Array
    logits: Array | None = None
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """What was seen of one model in one type; ``fault`` is empty where all is well."""

    model: str
    type: str
    fault: str
    rounding: float = 0.0
    largest: float = 0.0
    median: float = 0.0

    @property
    def bound(self) -> float:
        return max(FEW_UNITS, self.rounding)


def _libraries() -> tuple[Any, Any]:
    """Return torch and transformers, which the process of llama.cpp does without."""
    return importlib.import_module("torch"), importlib.import_module("transformers")


def golden_models(golden: Path, work: Path) -> Iterator[Model]:
    """Yield the models of transformers and of llm.c whose inputs are recorded."""
    for path in sorted(golden.glob("hf/*.io.npz")):
        name = path.name.removesuffix(".io.npz")
        with np.load(path) as io:
            yield Model(f"hf/{name}", golden / "hf" / name, golden / "hf" / name, io["input_ids"][0])
    for path in sorted(golden.glob("llmc_*/*_io.npz")):
        name = path.name.removesuffix("_io.npz")
        source, folder = path.with_name(f"{name}_fp32.bin"), work / name
        ckptio.convert(source, f"{folder}/", checkpoint_format="safetensors", layout="hf")
        with np.load(path) as io:
            known = {"norm_eps": 1e-5}  # the header of llm.c master has no room for it
            yield Model(f"llm.c/{name}", source, folder, io["x"][0], io["logits"][0], known)


def random_models(work: Path) -> Iterator[Model]:
    """Yield models of transformers with weights drawn at random, norms and biases too."""
    torch, transformers = _libraries()
    sizes = {"vocab_size": 99, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64}
    for config_class in (transformers.Qwen2Config, transformers.LlamaConfig):
        for tied in (True, False):
            config = config_class(**sizes, **heads, rms_norm_eps=1e-5, tie_word_embeddings=tied)
            torch.manual_seed(7)
            model = transformers.AutoModelForCausalLM.from_config(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            name = f"{config.model_type}_6_2_{'tied' if tied else 'untied'}"
            model.save_pretrained(work / name)
            tokens = np.arange(1, 25) * 17 % sizes["vocab_size"]
            yield Model(f"random/{name}", work / name, work / name, tokens)


@dataclass(frozen=True)
class Rounder:
    """Brings values to those that a type has, where their rows are whole blocks of it."""

    kind: str

    @property
    def block(self) -> int:
        return 32 if self.kind in QUANTISED else 1

    def __call__(self, values: Array) -> Array:
        import gguf
        import ml_dtypes

        if values.shape[-1] % self.block:
            return values
        if self.kind in QUANTISED:
            number = gguf.GGMLQuantizationType[self.kind.upper()]
            rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
            return gguf.quants.dequantize(gguf.quants.quantize(rows, number), number).reshape(values.shape)
        narrow = np.dtype({"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[self.kind])
        return values.astype(narrow).astype(np.float32)


def load_f32(folder: Path) -> Any:
    """Return a model of transformers, its weights widened to f32."""
    torch, transformers = _libraries()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits_of(network: Any, tokens: Array) -> Array:
    """Return the logits at each position."""
    torch, _ = _libraries()
    with torch.no_grad():
        return np.asarray(network(torch.from_numpy(tokens[None].astype(np.int64))).logits[0].numpy())


def round_weights(network: Any, kind: str) -> list[Any]:
    """Round the matrices of a model to a type, as llama.cpp's converter does, and return their modules."""
    torch, _ = _libraries()
    done: dict[int, Any] = {}
    modules = []
    for module in network.modules():
        weight = getattr(module, "weight", None)
        # llama.cpp has positions in f32 alone, as all that is no matrix.
        if weight is None or weight.dim() < 2 or module is getattr(network.base_model, "wpe", None):
            continue
        modules.append(module)
        if id(weight) not in done:
            done[id(weight)] = weight
            with torch.no_grad():
                turned = _is_conv1d(module)
                rounded = _rounded(Rounder(kind), weight.T if turned else weight)
                weight.copy_(rounded.T if turned else rounded)
    return modules


def _rounded(round_values: Rounder, values: Any) -> Any:
    torch, _ = _libraries()
    return torch.from_numpy(np.ascontiguousarray(round_values(values.detach().numpy())))


def compute_like_ggml(network: Any, kind: str) -> None:
    """Round weights to a type, and make inputs be rounded as ggml does it where they meet such weights."""
    torch, transformers = _libraries()
    of_inputs = Rounder("q8_0" if kind in QUANTISED else kind)
    for module in round_weights(network, kind):
        # A row that is no whole blocks has its weights in f32.
        fits = module.weight.shape[0 if _is_conv1d(module) else 1] % of_inputs.block == 0
        if not isinstance(module, torch.nn.Embedding) and fits:
            module.register_forward_pre_hook(lambda _module, inputs: (_rounded(of_inputs, inputs[0]),))
    for module in network.modules():
        if isinstance(module, transformers.activations.NewGELUActivation):
            module.register_forward_pre_hook(_half)
            module.register_forward_hook(lambda _module, inputs, output: _half_below(inputs[0], output))


def _is_conv1d(module: Any) -> bool:
    return isinstance(module, _libraries()[1].pytorch_utils.Conv1D)


def _half(_module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    values = inputs[0]
    return (values.where(values.abs() >= _GELU_LIMIT, values.half().float()),)


def _half_below(values: Any, output: Any) -> Any:
    return output.where(values.abs() >= _GELU_LIMIT, output.half().float())


def run_llama(path: str, tokens: list[int], result: str, errors: str) -> None:
    """Write the logits of llama.cpp at each position; what it says is put into a file."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
    os.environ["GGML_NO_BACKTRACE"] = "1"
    llama_cpp: Any = importlib.import_module("llama_cpp.llama_cpp")
    defaults = llama_cpp.llama_model_default_params()
    # The kernels for Intel's AMX end with a segmentation fault on matrices this small.
    defaults.use_extra_bufts = False
    llama_cpp.llama_model_default_params = lambda: defaults
    model = importlib.import_module("llama_cpp").Llama(
        path,
        logits_all=True,
        n_ctx=len(tokens),
        n_batch=len(tokens),
        n_threads=1,
        n_gpu_layers=0,
        use_mmap=False,
        flash_attn=False,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )
    model.eval(tokens)
    np.save(result, model.scores[: len(tokens)])


def try_model(model: Model, kind: str, original: Array, work: Path) -> Outcome:
    """Convert, run both programs, and compare."""
    path, result, errors = work / "a.gguf", work / "logits.npy", work / "errors"
    how: dict[str, Any] = {"dtype": "f32" if kind in QUANTISED else kind, "config": model.config}
    if kind in QUANTISED:
        how |= {"options": {"quantize": kind}, "allow": ["fallback"]}
    try:
        ckptio.convert(model.source, path, layout="gguf", overwrite=True, **how)
    except ckptio.CkptError as error:
        return Outcome(model.name, kind, f"ckptio: {error}")
    result.unlink(missing_ok=True)
    arguments = (str(path), model.tokens.tolist(), str(result), str(errors))
    process = _PROCESSES.Process(target=run_llama, args=arguments)
    process.start()
    process.join()
    if not result.exists():
        said = errors.read_text().strip().splitlines() or ["nothing"]
        return Outcome(model.name, kind, f"llama.cpp ended with {process.exitcode} and said: {said[-1]}")
    network = load_f32(model.folder)
    compute_like_ggml(network, kind)
    expected = logits_of(network, model.tokens)
    scale = float(np.abs(original).max())
    rounding = float(np.abs(expected - original).max()) / scale
    found = np.abs(np.load(result) - expected).max(axis=1) / scale
    outcome = Outcome(model.name, kind, "", rounding, float(found.max()), float(np.median(found)))
    # Written so that a logit that is no number breaks the bound too.
    return outcome if outcome.largest <= outcome.bound else dataclasses.replace(outcome, fault="too far")


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes in Markdown."""
    lines = ["| model | type | rounding | largest | median | bound | verdict |", "|---" * 7 + "|"]
    for each in outcomes:
        numbers = [f"{value:.1e}" for value in (each.rounding, each.largest, each.median, each.bound)]
        verdict = " ".join(each.fault.split()) or "holds"
        lines.append(f"| {' | '.join((each.model, each.type, *numbers, verdict))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("golden", type=Path, help="the folder of all golden files")
    parser.add_argument("--types", nargs="+", choices=[*PLAIN, *QUANTISED], default=[*PLAIN, "q8_0"])
    given = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        for model in (*golden_models(given.golden, work), *random_models(work)):
            original = model.logits
            if original is None:
                original = logits_of(load_f32(model.folder), model.tokens)
            for kind in given.types:
                outcomes.append(try_model(model, kind, original, work))
                sys.stderr.write(f"{outcomes[-1]}\n")
    sys.stdout.write(table(outcomes) + "\n")
    return 1 if any(outcome.fault for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
