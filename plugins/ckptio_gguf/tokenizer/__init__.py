"""Tokenizers between the files of transformers and the metadata of llama.cpp.

From a folder to a file (``-o tokenizer=DIR``) there are four sources, tried in this order:

1. ``tokenizer.json`` that is a byte-level BPE (GPT-2, LLaMA 3, Qwen2): the model ``gpt2``;
2. ``tokenizer.model`` of sentencepiece, of the kind BPE (LLaMA 1 and 2): the model ``llama``;
3. ``tokenizer.json`` that is a BPE with byte fallback, as transformers makes it of 2: also ``llama``;
4. ``vocab.json`` and ``merges.txt``: the model ``gpt2``.

Keys, types and order of precedence are those of llama.cpp's ``convert_hf_to_gguf.py`` (``_set_vocab_gpt2``,
``_set_vocab_sentencepiece``, ``_set_vocab_llama_hf``) and of ``gguf.vocab``. Where it differs:

- The name of the pre-tokenizer comes from its regular expression, not from a hash of tokens
  (`ckptio_gguf.tokenizer.pretokenizers`).
- Of 3, the scores are the ranks of the merges: llama.cpp merges by score. The converter has -1000 for all.
- A piece that sentencepiece never splits (USER_DEFINED) is of this type, and not a normal one.
- Special tokens are sought in the whole vocabulary and in ``special_tokens_map.json`` too.

What llama.cpp would do otherwise than the tokenizer is refused: ``--allow tokenization`` accepts it. What
cannot be said at all is refused too, and ``--allow tokenizer`` writes a file without tokenizer.

From a file to a folder, ``tokenizer.json`` and ``tokenizer_config.json`` are made of the metadata.
"""
