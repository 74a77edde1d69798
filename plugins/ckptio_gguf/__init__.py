"""GGUF files (``.gguf``), the models of llama.cpp, read and written.

::

    char[4]  "GGUF"
    u32      version: 3, or 2, which differs in nothing that is read here
    u64 u64  number of tensors, number of metadata values
             metadata: key, type (u32), value, one after the other
             tensors: name, number of dimensions (u32), dimensions (u64 each, the fastest first),
             type (u32), offset from the beginning of the data (u64)
    byte[]   data, each tensor at a multiple of the alignment (32, or ``general.alignment``)

All little-endian; a string is a u64 of bytes and UTF-8. Source: the specification in ggml's ``docs/gguf.md``
and the package gguf 0.19, and files that it wrote. The reader is as strict as ggml's own: every tensor
begins where the one before ends, rounded up to the alignment.

**Quantised tensors** are decoded by the package gguf (``pip install 'ckptio[gguf]'``), tensor by tensor and a
few blocks at a time; nothing else needs it. They read as f32, or as ``-O dequantize=f16`` or ``bf16`` says.
From GGUF to GGUF their blocks are carried as they are, byte for byte, under whatever names, as long as
neither ``dequantize`` nor ``--dtype`` asks for other elements.

**Split models** (``name-00001-of-00003.gguf``) are read as one, by the name of any of their files or of the
directory; every file must be there and agree with the others. The metadata are those of the first file, less
``split.no``, ``split.count`` and ``split.tensors.count``, which are not true of a whole. Written is one file.

**general.file_type** is put right where the elements change: a value that contradicts the type of most
elements (of the tensors with two dimensions or more) is replaced, when that type is plain or was made by
``-o quantize``. Carried blocks, and a file whose value was wrong before, keep what was said. A model that is
brought into llama.cpp's layout gets the key. ``general.quantization_version`` is written when something is
quantised, and else kept as it is.

**Metadata** keep their keys and values. What the values alone do not say stands in ``metadata["gguf"]``:

``alignment``
    ``general.alignment``, where the file gives one.
``types``
    The type of each value that a writer would not choose by itself (below): ``{"x.count": "u16"}``,
    ``"[u8]"`` for an array. A float that is not finite is the text ``nan``, ``inf`` or ``-inf``.
``quantized``
    The type of each quantised tensor: ``{"token_embd.weight": "Q4_K"}``.
``files``
    The number of files, where the model is split into several.
``mostly``
    The type that most elements have, where ``general.file_type`` says another: ``"F32"``.

Unless ``types`` says more, a whole number is written as the first of u32, i32, u64 and i64 that holds it
(i32 first in an array), and another number as f32 when that is exact, else as f64. Metadata that no GGUF
value can be (a map, None, a list of several kinds) stand as JSON in ``ckptio.metadata``.

**A tokenizer** of transformers goes into the file with ``-o tokenizer=DIR``, and comes out of it as a
``tokenizer.json`` (`ckptio_gguf.tokenizer`). Without the option ``tokenizer.*`` stay as the source has them.

llama.cpp itself takes names of up to 63 bytes only. Longer ones are written all the same.
"""

from __future__ import annotations

import ckptio

__all__ = ["ckptio_format"]


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    """Return the format ``gguf``."""
    from ckptio_gguf.format import GgufFormat

    return GgufFormat()
