"""Writing a model file: lay out the header, find everything that stands in the way, then copy.

The shared head: a GPT-2 file stores the embedding ``transformer.wte.weight`` once, and every program that
reads it uses that matrix as the output head too. So ``lm_head.weight`` is not written: `plan` refuses a
head that differs, because it would be lost without a word.

Hyperparameters that the header needs are taken from ``metadata["config"]`` and the shapes, else from the
source's own header of the same kind, and are never guessed. Only llm.c's bound on generated sequences
(4) and the version of LLaMA (3.1) have defaults. Words of the source's header that mean nothing to us stay
as they were, so that a file comes back the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckptio import Checkpoint, OptionError, Output, Problem
from ckptio.models import Recognised, apply_layout, config_problems, normalise_config
from ckptio_llmc.header import Header, padded_vocab
from ckptio_llmc.reader import ffn_bounds
from ckptio_llmc.stacks import header_sizes, pieces
from ckptio_llmc.variants import VARIANTS, VERSIONS, Variant, variant_of

__all__ = ["Plan", "plan", "write_model"]


@dataclass(frozen=True)
class Plan:
    """What will be written: the tensors in llm.c's layout, the header, and the sizes that place them."""

    checkpoint: Checkpoint
    header: Header
    sizes: Mapping[str, int]


def plan(checkpoint: Checkpoint, layout: str | None) -> tuple[Plan | None, list[Problem]]:
    """Return how ``checkpoint`` is written, or None and everything that stands in the way.

    ``layout`` is the layout for LLaMA-3, None for the source's own, or llm.c master's if it had none.
    A dtype that no llm.c file has is left to the format's capabilities to name.
    """
    arranged = apply_layout(checkpoint, "llmc")
    found, problems = arranged.recognised, arranged.problems
    if found is None:
        return None, problems
    if not all(found.sizes.values()):
        return None, [*problems, Problem("", f"a model without elements has no header: {dict(found.sizes)}")]
    try:
        config = normalise_config(checkpoint.metadata.get("config") or {})
        source = _source_header(checkpoint.metadata.get("llmc"))
    except OptionError as error:
        return None, [*problems, Problem("metadata", str(error))]
    variant = _choose(found, layout, source)
    words, wrong = _header_words(variant, found, config, source)
    problems = [*problems, *_dtype_problems(arranged.checkpoint, variant), *wrong]
    dtypes = {spec.dtype for spec in arranged.checkpoint.specs.values()}
    version = next((version for version, dtype in VERSIONS.items() if dtypes == {dtype}), None)
    if problems or version is None:
        return None, problems
    words[1] = version
    header = Header(variant, words)
    problems = _readable(header, found)
    if problems:
        return None, problems
    return Plan(arranged.checkpoint, header, {**header_sizes(header), **found.sizes}), []


def write_model(plan: Plan, out: Output) -> None:
    """Write what was planned."""
    file = out.create()
    file.write(b"".join(word.to_bytes(4, "little", signed=True) for word in plan.header.words))
    for piece in pieces(plan.header, plan.sizes):
        if piece.zeros is None:
            plan.checkpoint.copy_to(piece.name, file)
        else:
            file.zeros(piece.nbytes)


def _choose(found: Recognised, layout: str | None, source: Header | None) -> Variant:
    if found.architecture == "gpt2":
        return VARIANTS["gpt2"]
    if layout is not None:
        return VARIANTS[layout]
    own = source is not None and source.variant.architecture == found.architecture
    return source.variant if source is not None and own else VARIANTS["master"]


def _dtype_problems(checkpoint: Checkpoint, variant: Variant) -> list[Problem]:
    counts = Counter(spec.dtype for spec in checkpoint.specs.values())
    dtype = counts.most_common(1)[0][0]
    if len(counts) > 1:
        names = [name for name, spec in checkpoint.specs.items() if spec.dtype is not dtype]
        found = ", ".join(f"{count} {each.value}" for each, count in counts.most_common())
        listed = f"{', '.join(names[:10])}{', …' if len(names) > 10 else ''}"
        what = f"a file has one dtype, but here are {found} tensors ({listed}); cast them with --dtype"
        return [Problem("", what)]
    if dtype in VERSIONS.values() and dtype not in variant.dtypes:
        what = f"the layout {variant.name!r} holds f32 only, not {dtype.value}; pass -o layout=master"
        return [Problem("", what)]
    return []


def _source_header(raw: Any) -> Header | None:
    """Return the header that a reader of this format recorded; `OptionError` when it is none."""
    if raw is None:
        return None
    match raw:
        case {"layout": str(name), "header": list(first)} if name in VARIANTS:
            variant = VARIANTS[name]
            second = raw.get("float_header", [])
            words = [0] * variant.words
            if isinstance(second, list) and len(first) <= 256 and len(second) <= variant.words - 256:
                words[: len(first)] = first
                words[256 : 256 + len(second)] = second
                if all(type(word) is int and -(2**31) <= word < 2**31 for word in words):
                    return Header(variant, words)
    raise OptionError('metadata["llmc"] is not the header of an llm.c file')


def _header_words(
    variant: Variant, found: Recognised, config: Mapping[str, Any], source: Header | None
) -> tuple[list[int], list[Problem]]:
    own = source if source is not None and source.variant is variant else None
    words = list(own.words) if own is not None else [0] * variant.words
    words[0] = variant.magic
    wanted = variant.fields.keys() | ({"version"} if "major" in variant.fields else set())
    given = {key: value for key, value in config.items() if key in wanted}
    problems = config_problems(given, found.sizes)
    wrong = {problem.where.removeprefix("config.") for problem in problems}
    values = _values({key: value for key, value in given.items() if key not in wrong}, found.sizes)
    for key, field in variant.fields.items():
        if key in wrong:
            continue
        if key in values:
            try:
                words[field.word] = field.kind.encode(values[key])
            except OverflowError as error:
                problems.append(Problem(f"config.{key}", str(error)))
        elif own is None and field.default is not None:
            words[field.word] = field.default
        elif own is None:
            problems.append(Problem(f"config.{key}", f"the header needs it; pass --config {key}=…"))
    return words, problems


def _values(given: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the hyperparameters that are given, and those that follow from them and the shapes."""
    values = {**given, **sizes, "padded_vocab_size": padded_vocab(sizes["vocab_size"])}
    if "version" in given:
        values["major"], values["minor"] = map(int, given["version"].split("."))
    if "n_qkv" in sizes and "n_head" in given:
        head = sizes["n_embd"] // given["n_head"]
        values.setdefault("n_kv_head", max(1, (sizes["n_qkv"] - sizes["n_embd"]) // (2 * head)))
    return values


def _readable(header: Header, found: Recognised) -> list[Problem]:
    """Return what would keep us, or the programs that the file is for, from reading it back."""
    if variant_of(header.words) is not header.variant:
        word = "minor" if header.variant.name == "branch" else "rope_theta"
        value = header.values()[word]
        return [
            Problem(
                f"config.{word}", f"{value} could not be told from another layout's header; pass -o layout=…"
            )
        ]
    problems = header.problems() or config_problems(header.config(), found.sizes)
    if problems or found.architecture != "llama3":
        return problems
    (low, high), width = ffn_bounds(header), found.sizes["n_ffn"]
    multiple_of = header.values()["multiple_of"]
    if low <= width <= high and width % multiple_of == 0:
        return []
    made = f"{low}" if low == high else f"{low} to {high}"
    what = f"makes MLPs {made} wide with multiple_of {multiple_of}, but mlp.c_fc.weight has {width} rows"
    return [Problem("config.ffn_dim_multiplier", what)]
