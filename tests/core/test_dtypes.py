"""The table of element types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from ckptio import DType, MemoryCheckpoint, OptionError

# Short name, long name, bytes per element, a real floating type?
TABLE = [
    ("bool", "bool", 1, False),
    ("u8", "uint8", 1, False),
    ("i8", "int8", 1, False),
    ("u16", "uint16", 2, False),
    ("i16", "int16", 2, False),
    ("u32", "uint32", 4, False),
    ("i32", "int32", 4, False),
    ("u64", "uint64", 8, False),
    ("i64", "int64", 8, False),
    ("f8_e3m4", "float8_e3m4", 1, True),
    ("f8_e4m3", "float8_e4m3", 1, True),
    ("f8_e4m3b11fnuz", "float8_e4m3b11fnuz", 1, True),
    ("f8_e4m3fn", "float8_e4m3fn", 1, True),
    ("f8_e4m3fnuz", "float8_e4m3fnuz", 1, True),
    ("f8_e5m2", "float8_e5m2", 1, True),
    ("f8_e5m2fnuz", "float8_e5m2fnuz", 1, True),
    ("f8_e8m0fnu", "float8_e8m0fnu", 1, True),
    ("f16", "float16", 2, True),
    ("bf16", "bfloat16", 2, True),
    ("f32", "float32", 4, True),
    ("f64", "float64", 8, True),
    ("c64", "complex64", 8, False),
    ("c128", "complex128", 16, False),
]


def test_the_set_is_closed() -> None:
    assert [dtype.value for dtype in DType] == [short for short, *_ in TABLE]


@pytest.mark.parametrize(("short", "long", "itemsize", "is_float"), TABLE)
def test_the_table(short: str, long: str, itemsize: int, is_float: bool) -> None:
    dtype = DType(short)
    carrier = np.dtype(getattr(ml_dtypes, long, long))
    assert DType.parse(short) is DType.parse(long) is DType.parse(long.upper()) is dtype
    assert (dtype.long_name, dtype.itemsize, dtype.is_float) == (long, itemsize, is_float)
    assert dtype.numpy == carrier
    assert DType.of(carrier) is dtype


@pytest.mark.parametrize("long", [long for _, long, *_ in TABLE if hasattr(torch, long)])
def test_torch_agrees_on_size_and_kind(long: str) -> None:
    dtype, theirs = DType.parse(long), getattr(torch, long)
    assert dtype.itemsize == theirs.itemsize
    assert dtype.is_float == theirs.is_floating_point


@pytest.mark.parametrize("letters", ["u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"])
def test_byte_order_is_not_part_of_the_type(letters: str) -> None:
    big, little = np.dtype(f">{letters}"), np.dtype(f"<{letters}")
    assert DType.of(big) is DType.of(little)
    assert DType.of(big).numpy.str == little.str


def test_big_endian_elements_come_little_endian() -> None:
    checkpoint = MemoryCheckpoint({"x": np.array([1.0, -2.5], ">f4")})
    assert checkpoint.specs["x"].dtype is DType.F32
    assert b"".join(checkpoint.chunks("x")) == bytes.fromhex("0000803f 000020c0")


@pytest.mark.parametrize("short", [short for short, *_ in TABLE])
def test_an_array_has_the_true_dtype_and_the_same_bits(short: str) -> None:
    """NaN payloads, -0.0 and subnormals are among them."""
    dtype = DType(short)
    patterns = np.arange(256, dtype=np.uint8)
    if dtype is DType.BOOL:
        patterns %= 2
    raw = np.repeat(patterns, dtype.itemsize)
    array = MemoryCheckpoint({"x": raw.view(dtype.numpy)}).read("x")
    assert array.dtype == dtype.numpy
    assert array.tobytes() == raw.tobytes()


@pytest.mark.parametrize(
    "dtype",
    ["O", "U3", "S3", "V4", "M8[s]", "m8[s]", "g", "f4,i4", ml_dtypes.int4, ml_dtypes.float4_e2m1fn],
    ids=str,
)
def test_what_is_outside_is_refused_by_name(dtype: object) -> None:
    outside = np.dtype(dtype)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="cannot be stored") as caught:
        DType.of(outside)
    assert str(outside) in str(caught.value)


@pytest.mark.parametrize("name", ["float", "f128", "", "f8", "bf16 "])
def test_an_unknown_name_lists_the_known(name: str) -> None:
    with pytest.raises(OptionError, match="unknown dtype") as caught:
        DType.parse(name)
    listed = str(caught.value).partition("known: ")[2].split(", ")
    assert repr(name) in str(caught.value)
    assert listed == [short for short, *_ in TABLE]
