"""numpy's ``.npz`` archives, read and written, and single ``.npy`` arrays, read.

An ``.npz`` file is a zip archive with an ``.npy`` array in each entry, whose name is the array's and
``.npy``. Source: ``numpy.lib.format`` and ``numpy.savez`` of numpy 2.4, and files that they wrote.

numpy has no name for bf16 and the f8 kinds, and nothing can say later which of them its ``V2`` and
``V1`` were. So they are written as unsigned integers of their size, and one more entry says what they
are: ``__ckptio__.npy``, a u8 array that is the JSON text ``{"dtypes": {"<name>": "bf16", …}}``. The
file loads with plain numpy::

    arrays = np.load(path)
    dtypes = json.loads(arrays["__ckptio__"].tobytes())["dtypes"]
    weight = arrays["weight"].view(ml_dtypes.bfloat16)  # where dtypes["weight"] is "bf16"
"""

from __future__ import annotations

import ckptio

__all__ = ["ckptio_format"]


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    """Return the format ``npz``."""
    from ckptio_npz.format import NpzFormat

    return NpzFormat()
