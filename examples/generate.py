"""Go on with a text, greedily: ``python examples/generate.py MODEL TEXT [TOKENS]``.

MODEL is a folder of transformers, by ``pip install torch transformers``, or a ``.gguf`` file for llama.cpp,
by ``pip install llama-cpp-python``.
"""

from __future__ import annotations

import argparse
import importlib

__all__ = ["main"]


def with_transformers(folder: str, text: str, tokens: int) -> str:
    """Return ``text`` and what a model of transformers makes of it, computed in f32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = tokenizer(text, return_tensors="pt")
    made = model.generate(**given, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return str(tokenizer.decode(made[0]))


def with_llama_cpp(path: str, text: str, tokens: int) -> str:
    """Return ``text`` and what llama.cpp makes of it."""
    model = importlib.import_module("llama_cpp").Llama(path, n_ctx=0, verbose=False)
    answer = model(text, max_tokens=tokens, temperature=0.0)
    return f"{text}{answer['choices'][0]['text']}"


def main() -> None:
    """Print the text that the command line asks for."""
    parser = argparse.ArgumentParser(description="Go on with a text.")
    parser.add_argument("model", help="folder of transformers, or .gguf file")
    parser.add_argument("text", help="how the text begins")
    parser.add_argument("tokens", type=int, nargs="?", default=100, help="how many to add")
    given = parser.parse_args()
    run = with_llama_cpp if given.model.endswith(".gguf") else with_transformers
    print(run(given.model, given.text, given.tokens))  # noqa: T201


if __name__ == "__main__":
    main()
