"""The order of the tensors in a file, for reading and writing alike.

A file is a sequence of *stacks*: of each stack, the entries of layer 0, then those of layer 1, and so on.
Names and shapes are those of ``ckptio.models``. Some entries are *zeros*: the vocabulary padding of GPT-2,
and the biases that llm.c's branch llama3 writes although LLaMA-3 has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ckptio.models import Row, architecture
from ckptio_llmc.header import Header, padded_vocab
from ckptio_llmc.variants import Variant

__all__ = ["Piece", "count_elements", "count_tensors", "header_sizes", "pieces"]

_WTE = "transformer.wte.weight"
_H = "transformer.h.{l}."

_BRANCH_BIASES = {
    _H + "ln_1.bias": "n_embd",
    _H + "attn.c_attn.bias": "n_qkv",
    _H + "attn.c_proj.bias": "n_embd",
    _H + "ln_2.bias": "n_embd",
    _H + "mlp.c_fc.bias": "2*n_ffn",
    _H + "mlp.c_proj.bias": "n_embd",
    "transformer.ln_f.bias": "n_embd",
}
# GPT-2's order: the head stands where wpe would, and the two halves of the MLP take turns.
_BRANCH = (
    (_WTE,),
    ("lm_head.weight",),
    (_H + "ln_1.weight",),
    (_H + "ln_1.bias",),
    (_H + "attn.c_attn.weight",),
    (_H + "attn.c_attn.bias",),
    (_H + "attn.c_proj.weight",),
    (_H + "attn.c_proj.bias",),
    (_H + "ln_2.weight",),
    (_H + "ln_2.bias",),
    (_H + "mlp.c_fc.weight", _H + "mlp.c_fc2.weight"),
    (_H + "mlp.c_fc.bias",),
    (_H + "mlp.c_proj.weight",),
    (_H + "mlp.c_proj.bias",),
    ("transformer.ln_f.weight",),
    ("transformer.ln_f.bias",),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of every layer; ``zeros`` is the word that accepts the loss of what stands there instead."""

    row: Row
    zeros: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes of the file: a tensor, or zeros."""

    name: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    zeros: str | None


def header_sizes(header: Header) -> dict[str, int]:
    """Return the named sizes that a header tells: all but LLaMA-3's ``n_ffn``."""
    values = header.values()
    sizes = {key: values[key] for key in ("n_layer", "n_embd", "vocab_size", "block_size")}
    if header.variant.architecture == "gpt2":
        return {**sizes, "padding": padded_vocab(sizes["vocab_size"]) - sizes["vocab_size"]}
    head = sizes["n_embd"] // values["n_head"]
    return {**sizes, "n_qkv": (values["n_head"] + 2 * values["n_kv_head"]) * head}


def count_elements(variant: Variant, sizes: Mapping[str, int]) -> int:
    """Return how many elements follow the header."""
    return sum(
        entry.row.size_for(sizes) * entry.row.count(sizes["n_layer"])
        for stack in _stacks(variant)
        for entry in stack
    )


def count_tensors(variant: Variant, n_layer: int) -> int:
    """Return how many tensors a file has."""
    entries = (entry for stack in _stacks(variant) for entry in stack if entry.zeros is None)
    return sum(entry.row.count(n_layer) for entry in entries)


def pieces(header: Header, sizes: Mapping[str, int]) -> Iterator[Piece]:
    """Yield all that follows the header, in file order and without a gap."""
    offset = header.variant.header_bytes
    for stack in _stacks(header.variant):
        shaped = [(entry, entry.row.shape_for(sizes), entry.row.size_for(sizes)) for entry in stack]
        for layer in range(stack[0].row.count(sizes["n_layer"])):
            for entry, shape, size in shaped:
                nbytes = size * header.dtype.itemsize
                yield Piece(entry.row.name_in(layer), shape, offset, nbytes, entry.zeros)
                offset += nbytes


def _stacks(variant: Variant) -> list[tuple[Entry, ...]]:
    table = architecture(variant.architecture)
    if variant.name == "branch":
        return [tuple(_branch_entry(name, table.by_name) for name in stack) for stack in _BRANCH]
    stacks: list[tuple[Entry, ...]] = [(Entry(row),) for row in table.rows if row.column("llmc").stored]
    if variant.name == "gpt2":
        stacks.insert(1, (Entry(Row(_WTE, ("padding", "n_embd")), "padding"),))
    return stacks


def _branch_entry(name: str, rows: Mapping[str, Row]) -> Entry:
    if name in _BRANCH_BIASES:
        return Entry(Row(name, (_BRANCH_BIASES[name],)), "biases")
    return Entry(rows[name])
