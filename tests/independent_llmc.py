"""llm.c model files by struct and numpy alone: the judge of the llmc plugin, which shares no code with it.

Laid out after llm.c's ``write_model`` (``train_gpt2.py`` and ``train_llama3.py``); see ``read_llmc``.
"""

from __future__ import annotations

import struct
from pathlib import Path

GPT2 = (
    "ln_1.weight C", "ln_1.bias C",
    "attn.c_attn.weight 3C,C", "attn.c_attn.bias 3C", "attn.c_proj.weight C,C",
    "attn.c_proj.bias C", "ln_2.weight C", "ln_2.bias C", "mlp.c_fc.weight 4C,C", "mlp.c_fc.bias 4C",
    "mlp.c_proj.weight C,4C", "mlp.c_proj.bias C",
)  # fmt: skip
LLAMA3 = (
    "ln_1.weight C", "attn.c_attn.weight Q,C", "attn.c_proj.weight C,C", "ln_2.weight C",
    "mlp.c_fc.weight F,C", "mlp.c_fc2.weight F,C", "mlp.c_proj.weight C,F",
)  # fmt: skip

Stored = tuple[tuple[int, ...], bytes]


def read_llmc(path: Path) -> tuple[tuple[int, ...], str, dict[str, Stored]]:
    """Return header words, dtype and the tensors (shape, bytes) of a GPT-2 or a LLaMA-3 of llm.c master."""
    raw = path.read_bytes()
    words = struct.unpack_from("<256i", raw)
    kind, itemsize = {3: ("f32", 4), 5: ("bf16", 2)}[words[1]]
    vocab, layers, heads = words[3], words[4], words[5]
    if words[0] == 20240326:
        width, padded = words[6], words[7]
        sizes = {"C": width, "3C": 3 * width, "4C": 4 * width}
        rows: tuple[str, ...] = GPT2
        first: list[tuple[str, tuple[int, ...]]] = [
            ("transformer.wte.weight", (padded, width)),
            ("transformer.wpe.weight", (words[2], width)),
        ]
        last: list[tuple[str, tuple[int, ...]]] = [
            ("transformer.ln_f.weight", (width,)),
            ("transformer.ln_f.bias", (width,)),
        ]
    else:
        assert words[0] == 20240803
        width, kv = words[7], words[6]
        fixed = (
            2 * vocab * width
            + width
            + layers * (2 * width + (heads + 2 * kv) * width // heads * width + width**2)
        )
        hidden, rest = divmod((len(raw) - 1024) // itemsize - fixed, 3 * layers * width)
        assert rest == 0
        sizes = {"C": width, "F": hidden, "Q": (heads + 2 * kv) * width // heads}
        rows, first = LLAMA3, [("transformer.wte.weight", (vocab, width))]
        last = [("transformer.ln_f.weight", (width,)), ("lm_head.weight", (vocab, width))]
    order = list(first)
    for row in rows:
        name, dims = row.split()
        shape = tuple(sizes[dim] for dim in dims.split(","))
        order += [(f"transformer.h.{layer}.{name}", shape) for layer in range(layers)]
    at = 1024
    found: dict[str, Stored] = {}
    for name, shape in order + last:
        size = itemsize
        for dim in shape:
            size *= dim
        found[name] = (shape, raw[at : at + size])
        at += size
    assert at == len(raw)
    if words[0] == 20240326:
        shape, data = found["transformer.wte.weight"]
        real = vocab * shape[1] * itemsize
        assert data[real:] == bytes(len(data) - real), "the padding is zeros"
        found["transformer.wte.weight"] = ((vocab, shape[1]), data[:real])
    return words, kind, found
