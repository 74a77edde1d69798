"""llm.c's model files (``.bin``): GPT-2, and LLaMA-3 in the three layouts that share one magic.

A file is a header of 256 int32 words, and then the tensors without names, one kind after the other, each
for all layers. See ``header.py`` for the words, ``stacks.py`` for the order, ``reader.py`` and
``writer.py`` for what becomes of the shared head, of padding and of biases.

Source: ``train_gpt2.py``, ``train_gpt2.c``, ``train_llama3.py`` of llm.c (master f1e2ace, branch llama3
d36f0e6), ``example/llama3/checkpoint_loader.cc`` of InfiniTrain (b24d92f), and files that they wrote.
"""

from __future__ import annotations

import ckptio

__all__ = ["ckptio_format"]


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    """Return the format ``llmc``."""
    from ckptio_llmc.format import LlmcFormat

    return LlmcFormat()
