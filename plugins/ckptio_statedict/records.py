"""The records of a StateDict file, parsed within bounds and packed; the package describes the bytes."""

from __future__ import annotations

import struct

import ckptio
from ckptio import DType
from ckptio.limits import shape_problem

__all__ = ["CODES", "LORA_MAGIC", "MAGIC", "pack_header", "pack_record", "read_records"]

MAGIC = b"CKPT"
LORA_MAGIC = b"AROL"
VERSION = 1

_HEADER = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_TYPE = struct.Struct("<bI")
_NBYTES = struct.Struct("<Q")
_SMALLEST_RECORD = _LENGTH.size + _TYPE.size + _NBYTES.size

_DTYPES = (
    DType.BOOL,
    DType.U8,
    DType.I8,
    DType.U16,
    DType.I16,
    DType.U32,
    DType.I32,
    DType.U64,
    DType.I64,
    DType.BF16,
    DType.F16,
    DType.F32,
    DType.F64,
)
CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
"""The number that stands for each dtype: InfiniTrain's enum ``DataType``."""


def pack_header(count: int) -> bytes:
    """Return the first bytes of a file of ``count`` records."""
    return MAGIC + _HEADER.pack(VERSION, count)


def pack_record(spec: ckptio.TensorSpec) -> bytes:
    """Return the bytes of a record up to its data."""
    name = spec.name.encode()
    kind = _TYPE.pack(CODES[spec.dtype], len(spec.shape))
    dimensions = struct.pack(f"<{len(spec.shape)}q", *spec.shape)
    return _LENGTH.pack(len(name)) + name + kind + dimensions + _NBYTES.pack(spec.nbytes)


def read_records(file: ckptio.SourceFile) -> tuple[dict[str, ckptio.TensorSpec], dict[str, int]]:
    """Return the tensors of a file, in its order, and where the data of each begins.

    Raises `CorruptCheckpointError` with the offset of what is wrong, and `UnsupportedError` for a
    LoRA weights file.
    """
    cursor = ckptio.Cursor(file)
    specs: dict[str, ckptio.TensorSpec] = {}
    offsets: dict[str, int] = {}
    for index in range(_read_count(cursor)):
        start = cursor.offset
        spec, nbytes = _read_record(cursor, index)
        if spec.name in specs:
            raise cursor.error(f"{_label(index, spec.name)} has the name of an earlier one", start)
        specs[spec.name], offsets[spec.name] = spec, cursor.offset
        cursor.skip(nbytes, f"the data of tensor {index}")
    if cursor.left:
        raise cursor.error(f"{cursor.left} bytes follow the last of {len(specs)} tensors; expected none")
    return specs, offsets


def _read_count(cursor: ckptio.Cursor) -> int:
    magic = cursor.take(len(MAGIC), "the magic")
    if magic == LORA_MAGIC:
        raise ckptio.UnsupportedError(
            f"{cursor.file.path}: InfiniTrain's LoRA weights (lora_weights.bin) are not supported; "
            "the model.ckpt of the same run holds them beside the weights that they adapt"
        )
    if magic != MAGIC:
        raise cursor.error(f"expected {MAGIC!r}, found {magic!r}: not an InfiniTrain StateDict file", 0)
    start = cursor.offset
    version, count = cursor.unpack(_HEADER, "the file header")
    if version != VERSION:
        raise cursor.error(f"version {version} is unknown; version {VERSION} can be read", start)
    limit = ckptio.current_limits().tensors
    if count > cursor.left // _SMALLEST_RECORD:
        raise cursor.error(f"{count} tensors cannot be in the {cursor.left} bytes that follow", start + 4)
    if count > limit:
        raise cursor.error(f"{count} tensors are more than the limit of {limit}", start + 4)
    return int(count)


def _read_record(cursor: ckptio.Cursor, index: int) -> tuple[ckptio.TensorSpec, int]:
    """Return the next tensor and the bytes of its data; the cursor then stands before them."""
    where = f"the header of tensor {index}"
    (length,) = cursor.unpack(_LENGTH, where)
    start = cursor.offset
    raw = cursor.take(length + _TYPE.size, where)
    name = _decode(cursor, raw[:length], start)
    code, ndim = _TYPE.unpack_from(raw, length)
    if not 0 <= code < len(_DTYPES):
        what = f"dtype {code} is unknown; known: 0 to {len(_DTYPES) - 1}"
        raise cursor.error(f"{_label(index, name)}: {what}", start + length)
    limit = ckptio.current_limits().dimensions
    if ndim > limit:
        what = f"{ndim} dimensions are more than the limit of {limit}"
        raise cursor.error(f"{_label(index, name)}: {what}", start + length + 1)

    start = cursor.offset
    *shape, nbytes = struct.unpack(f"<{ndim}qQ", cursor.take(8 * ndim + 8, where))
    dtype = _DTYPES[code]
    problem = shape_problem(shape, dtype.itemsize)
    if problem:
        raise cursor.error(f"{_label(index, name)}: {problem}", start)
    spec = ckptio.TensorSpec(name, dtype, tuple(shape))
    if nbytes != spec.nbytes:
        what = f"{nbytes} bytes of data, but {dtype.value} of shape {spec.shape} has {spec.nbytes}"
        raise cursor.error(f"{_label(index, name)}: {what}", start + 8 * ndim)
    return spec, nbytes


def _decode(cursor: ckptio.Cursor, raw: bytes, start: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise cursor.error(f"a name is not UTF-8: {error.reason}", start + error.start) from None


def _label(index: int, name: str) -> str:
    # A damaged length can make half of the file a name.
    return f"tensor {index} ({name if len(name) <= 80 else name[:80] + '…'!r})"
