"""The first words of llm.c's files: two of models, and those of files that are something else.

In a module of its own, because recognising a file must not load what reads one.
"""

from __future__ import annotations

__all__ = ["GPT2_MAGIC", "LLAMA3_MAGIC", "MAGICS", "OTHER_FILES"]

GPT2_MAGIC = 20240326
LLAMA3_MAGIC = 20240803
OTHER_FILES = {
    20240327: "a debug state of GPT-2 (inputs, logits and gradients for llm.c's tests)",
    20240328: "a tokenizer",
    20240520: "a file of GPT-2 tokens (training data)",
    20240527: "an optimizer state (state_*.bin); the model is in model_*.bin beside it",
    20240801: "a file of LLaMA-3 tokens (training data)",
}
MAGICS = (GPT2_MAGIC, LLAMA3_MAGIC, *OTHER_FILES)
