"""torch's element types and classes of storages (source: ``torch/storage.py`` of torch 2.13)."""

from __future__ import annotations

from ckptio import DType

__all__ = ["DTYPES", "OTHER_DTYPES", "STORAGES"]

STORAGES: dict[DType, str] = {
    DType.F64: "DoubleStorage",
    DType.F32: "FloatStorage",
    DType.F16: "HalfStorage",
    DType.BF16: "BFloat16Storage",
    DType.I64: "LongStorage",
    DType.I32: "IntStorage",
    DType.I16: "ShortStorage",
    DType.I8: "CharStorage",
    DType.U8: "ByteStorage",
    DType.BOOL: "BoolStorage",
    DType.C64: "ComplexFloatStorage",
    DType.C128: "ComplexDoubleStorage",
}
"""The typed storages; tensors of any other type lie in an UntypedStorage and name their dtype."""

_LACKING = (DType.F8_E3M4, DType.F8_E4M3, DType.F8_E4M3B11FNUZ)
DTYPES: dict[str, DType] = {dtype.long_name: dtype for dtype in DType if dtype not in _LACKING}
"""torch's dtypes by their names, which are those of numpy and ml_dtypes."""

_QUANTIZED = ("quint8", "qint8", "qint32", "quint4x2", "quint2x4")
_BITS = ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2")
_NARROW = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))
OTHER_DTYPES = frozenset(("complex32", "float4_e2m1fn_x2", *_QUANTIZED, *_BITS, *_NARROW))
"""Further dtypes of torch, which no ckptio format holds."""
