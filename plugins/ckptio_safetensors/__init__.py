"""safetensors files (``.safetensors``), one or a sharded set with its index, read and written.

::

    u64     bytes of the header, little-endian
    char[]  header: a JSON object, UTF-8, padded with spaces so that the data begins at a multiple of 8
    byte[]  data, little-endian and C order

The header maps each name to ``{"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}``, with offsets
from the beginning of the data, which the tensors fill without a hole or an overlap. ``__metadata__``
is a map of strings.

Source: the format description and ``tensor.rs`` of safetensors 0.8, and files that it wrote. The reader is
as strict as that one, and refuses a key that occurs twice besides. It takes values of ``__metadata__``
that are no strings, which other writers have made; they stay the JSON values that they are.

What stands in ``__metadata__``, or in the ``metadata`` of an index, beside strings of the user's:

``format``
    The framework whose tensors these are; transformers wants ``pt``, which is always written.
the name of a tie
    ``{"lm_head.weight": "wte.weight"}``: a further name of a stored tensor. So write
    ``safetensors.torch.save_model`` and huggingface_hub, and so it is read and written here. Loaders
    that go by the stored tensors, ``load_file`` among them, see the stored name alone;
    ``-o ties=full`` stores every name for them.
``ckptio.metadata``
    Metadata that is no string, or would be mistaken for one of these: a JSON object.
``ckptio.leaves``
    The values beside the tensors by path: a JSON object, its values encoded as ``ckptio.leaves`` says.
"""

from __future__ import annotations

import ckptio

__all__ = ["ckptio_format"]


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    """Return the format ``safetensors``."""
    from ckptio_safetensors.format import SafetensorsFormat

    return SafetensorsFormat()
