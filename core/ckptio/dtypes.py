"""The closed set of element types that a checkpoint can hold.

Every name has one spelling of its own (``f32``, as safetensors abbreviates) and one long spelling
(``float32``, as numpy and ml_dtypes say); `DType.parse` takes either.
"""

from __future__ import annotations

import enum
import functools

import ml_dtypes
import numpy as np

from ckptio.errors import OptionError

__all__ = ["DType"]


class DType(enum.Enum):
    """One element type; the value is its short name.

    Arrays carry the true dtype (ml_dtypes' for bf16 and the f8 kinds), never a bare bit pattern.
    """

    BOOL = "bool"
    U8 = "u8"
    I8 = "i8"
    U16 = "u16"
    I16 = "i16"
    U32 = "u32"
    I32 = "i32"
    U64 = "u64"
    I64 = "i64"
    F8_E3M4 = "f8_e3m4"
    F8_E4M3 = "f8_e4m3"
    F8_E4M3B11FNUZ = "f8_e4m3b11fnuz"
    F8_E4M3FN = "f8_e4m3fn"
    F8_E4M3FNUZ = "f8_e4m3fnuz"
    F8_E5M2 = "f8_e5m2"
    F8_E5M2FNUZ = "f8_e5m2fnuz"
    F8_E8M0FNU = "f8_e8m0fnu"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    C64 = "c64"
    C128 = "c128"

    @functools.cached_property
    def long_name(self) -> str:
        """The name that numpy or ml_dtypes gives this type: ``float32``, ``bfloat16``, …"""
        return self.numpy.name

    @functools.cached_property
    def numpy(self) -> np.dtype:
        """The little-endian numpy dtype that carries this type in an array."""
        return _CARRIERS[self]

    @functools.cached_property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize

    @functools.cached_property
    def is_float(self) -> bool:
        """True for the real floating types (not for complex ones)."""
        return self.value.startswith(("f", "bf"))

    @classmethod
    def parse(cls, name: str) -> DType:
        """Return the type called ``name``, in either spelling.

        Raises `OptionError` that lists the known names.
        """
        try:
            return _BY_NAME[name.lower()]
        except KeyError:
            known = ", ".join(member.value for member in cls)
            raise OptionError(f"unknown dtype {name!r}; known: {known}") from None

    @classmethod
    def of(cls, dtype: np.dtype) -> DType:
        """Return the type of a numpy dtype, whatever its byte order.

        Raises `OptionError` for a dtype outside the set (object, str, datetime, longdouble, int4, …).
        """
        found = _BY_NUMPY.get(dtype.newbyteorder("<"))
        if found is None:
            raise OptionError(f"dtype {dtype} cannot be stored in a checkpoint")
        return found


_CARRIERS: dict[DType, np.dtype] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.U8: np.dtype("u1"),
    DType.I8: np.dtype("i1"),
    DType.U16: np.dtype("<u2"),
    DType.I16: np.dtype("<i2"),
    DType.U32: np.dtype("<u4"),
    DType.I32: np.dtype("<i4"),
    DType.U64: np.dtype("<u8"),
    DType.I64: np.dtype("<i8"),
    DType.F8_E3M4: np.dtype(ml_dtypes.float8_e3m4),
    DType.F8_E4M3: np.dtype(ml_dtypes.float8_e4m3),
    DType.F8_E4M3B11FNUZ: np.dtype(ml_dtypes.float8_e4m3b11fnuz),
    DType.F8_E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DType.F8_E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    DType.F8_E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DType.F8_E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    DType.F8_E8M0FNU: np.dtype(ml_dtypes.float8_e8m0fnu),
    DType.F16: np.dtype("<f2"),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F32: np.dtype("<f4"),
    DType.F64: np.dtype("<f8"),
    DType.C64: np.dtype("<c8"),
    DType.C128: np.dtype("<c16"),
}
_BY_NUMPY = {carrier: dtype for dtype, carrier in _CARRIERS.items()}
_BY_NAME = {dtype.value: dtype for dtype in DType} | {c.name: d for d, c in _CARRIERS.items()}
