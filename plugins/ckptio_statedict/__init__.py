"""InfiniTrain's native StateDict binary (``model.ckpt``, ``optimizer.ckpt``), read and written.

All integers are little-endian, nothing is aligned, and there is no checksum and no end mark::

    char[4]  "CKPT"           (u32 0x54504B43)
    u32      version, 1
    u32      count of records
    per record:
        u32      bytes of the name
        char[]   name, UTF-8
        i8       dtype: 0 bool  1 u8  2 i8  3 u16  4 i16  5 u32  6 i32  7 u64  8 i64
                        9 bf16  10 f16  11 f32  12 f64
        u32      number of dimensions
        i64[]    dimensions
        u64      bytes of the data
        byte[]   data, C order

Source: ``SaveStateDict`` and ``LoadStateDict`` of InfiniTrain (commit b24d92f), and files that it wrote.
The order of its records is that of a hash table, so a reader may rely on none.

The first stage of InfiniTrain's checkpoints gave the same bytes the suffixes ``.bin`` and ``.pth``.
Such files are read by their content. For writing they have to be asked for (``checkpoint_format``),
because ``.bin`` is also llm.c's and ``.pth`` also torch's.
"""

from __future__ import annotations

import ckptio

__all__ = ["ckptio_format"]


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    """Return the format ``statedict``."""
    from ckptio_statedict.format import StatedictFormat

    return StatedictFormat()
