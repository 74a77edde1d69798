"""Which dtype an array in the file has: what numpy's name says, and the note that says it for bf16 and f8."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from ckptio import DType, OptionError, TensorSpec
from ckptio_npz.header import ArrayHeader, carrier

__all__ = ["NOTE", "noted_dtypes", "pack_note", "parse_note", "plain_dtype", "reason_against"]

NOTE = "__ckptio__"
"""The name of the array that says which arrays are of a dtype for which numpy has no name."""

_PLAIN = {dtype.numpy.str[1:]: dtype for dtype in DType if dtype.numpy.kind != "V"}
"""By numpy's names. That of f8_e5m2 is among them: it is the one f8 kind that is no ``V1`` to numpy."""
_REASONS = {
    "V": "numpy's raw bytes, as which it stores bf16 and f8 without saying which; -O void=bf16 says it",
    "O": "objects, which are stored as a pickle: it is never loaded, for it can run code",
    "U": "text",
    "S": "text",
    "a": "text",
    "M": "dates",
    "m": "time spans",
    "[": "records of several fields",
}


def plain_dtype(header: ArrayHeader, void: DType | None) -> DType | None:
    """Return the dtype that the header names; ``void`` is that of raw bytes of its size, if it is known."""
    if void is not None and header.kind == f"V{void.itemsize}":
        return void
    return _PLAIN.get(header.kind)


def reason_against(header: ArrayHeader) -> str:
    """Return why an array is no tensor."""
    reason = _REASONS.get(header.kind[:1], "no dtype of checkpoints")
    return f"its dtype is {header.descr[:80]!r}: {reason}"


def noted_dtypes(specs: Iterable[TensorSpec]) -> dict[str, DType]:
    """Return the tensors for whose dtype numpy has no name."""
    return {spec.name: spec.dtype for spec in specs if carrier(spec.dtype) is not spec.dtype}


def pack_note(dtypes: Mapping[str, DType]) -> bytes:
    """Return the elements of the note."""
    return json.dumps({"dtypes": {name: dtype.value for name, dtype in dtypes.items()}}).encode("ascii")


def parse_note(data: bytes) -> dict[str, DType]:
    """Return what a note says; ValueError with the reason when it is none."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    match content:
        case {"dtypes": dict(dtypes)} if len(content) == 1 and all(
            isinstance(v, str) for v in dtypes.values()
        ):
            try:
                return {name: DType.parse(dtype) for name, dtype in dtypes.items()}
            except OptionError as error:
                raise ValueError(str(error)) from None
    raise ValueError('it is not {"dtypes": {"<name>": "<dtype>"}}')
