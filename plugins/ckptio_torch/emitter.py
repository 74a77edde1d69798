"""From inert records to a pickle of protocol 2, such as ``torch.load(weights_only=True)`` reads."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from ckptio_torch.dtypes import STORAGES
from ckptio_torch.records import Global, Map, Storage, Tagged, Tensor

__all__ = ["LONGEST_INT", "dump"]

LONGEST_INT = 255
"""Bytes of the longest integer: LONG4, for longer ones, is no opcode that torch reads."""
_SMALL = {1: b"K", 2: b"M"}
_SHARED = {"storage", "cpu"}


class _Op(bytes):
    """Opcodes, to be written as they are."""


def dump(value: Any) -> bytes:
    """Return the pickle of a value: plain values, and the records of ``ckptio_torch.records``.

    Nothing is written from the memo but globals and a few words, so that equal values that are not
    one object come back as two.
    """
    out = bytearray(b"\x80\x02")
    memo: dict[str, int] = {}
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, Global | str):
            out += _once(each, memo)
            continue
        parts = _parts(each)
        if isinstance(parts, bytes):
            out += parts
        else:
            stack.extend(reversed(parts))
    return bytes(out + b".")


def _once(value: Global | str, memo: dict[str, int]) -> bytes:
    """Return the opcodes of a global or text; a global that was written before comes from the memo."""
    if isinstance(value, Global):
        module, _, name = value.name.rpartition(".")
        key, data = f"c{value.name}", f"c{module}\n{name}\n".encode()
    else:
        text = value.encode("utf-8", "surrogatepass")
        key, data = value, b"X" + struct.pack("<I", len(text)) + text
        if value not in _SHARED:
            return data
    if key in memo:
        return b"h" + bytes([memo[key]])
    memo[key] = len(memo)
    return data + b"q" + bytes([memo[key]])


def _parts(value: Any) -> bytes | Sequence[Any]:
    """Return the opcodes of a value, or what it is put together of, in order."""
    match value:
        case _Op():
            return bytes(value)
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return _int(int(value))
        case float():
            return b"G" + struct.pack(">d", value)
        case complex():
            return _call("builtins.complex", value.real, value.imag)
        case bytes():
            return _call("_codecs.encode", value.decode("latin-1"), "latin1")
        case list():
            return [_Op(b"]"), _Op(b"("), *value, _Op(b"e")] if value else b"]"
        case tuple():
            return [_Op(b"("), *value, _Op(b"t")] if value else b")"
        case Mapping() if not value:
            return b"}"
        case Map():
            return _map(value)
        case Tagged():
            return _tagged(value.kind, value.value)
        case Tensor():
            return _tensor(value)
        case Storage():
            return _storage(value)
    raise TypeError(f"{type(value).__name__} is nothing that a checkpoint of torch holds")


def _call(name: str, *args: Any) -> list[Any]:
    return [Global(name), args, _Op(b"R")]


def _int(value: int) -> bytes:
    if 0 <= value < 1 << 16:
        size = 1 if value < 256 else 2
        return _SMALL[size] + value.to_bytes(size, "little")
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def _map(value: Map) -> list[Any]:
    parts: list[Any] = _call(f"collections.{value.kind}") if value.kind else [_Op(b"}")]
    if value.items:
        parts += [_Op(b"("), *value.items, _Op(b"u")]
    if value.attributes is not None:
        parts += [value.attributes, _Op(b"b")]
    return parts


def _tagged(kind: str, value: Any) -> Sequence[Any]:
    match kind:
        case "torch.dtype":
            return [Global(f"torch.{value}")]
        case "torch.device":
            name, _, index = value.partition(":")
            return _call(kind, name, int(index)) if index else _call(kind, name)
        case "torch.Size":
            return _call(kind, tuple(value))
        case "set":
            return _call("builtins.set", list(value))
        case "bytearray":
            return _call("builtins.bytearray", value.decode("latin-1"), "latin-1")
    raise TypeError(f"{kind} is nothing that a checkpoint of torch holds")


def _tensor(tensor: Tensor) -> list[Any]:
    hooks = Map("OrderedDict")
    if tensor.parameter:
        plain = Tensor(tensor.storage, tensor.dtype, tensor.offset, tensor.shape, tensor.strides)
        return _call("torch._utils._rebuild_parameter", plain, tensor.requires_grad, hooks)
    view = (tensor.storage, tensor.offset, tensor.shape, tensor.strides, tensor.requires_grad, hooks)
    if tensor.storage.dtype is not None:
        return _call("torch._utils._rebuild_tensor_v2", *view)
    return _call("torch._utils._rebuild_tensor_v3", *view, Tagged("torch.dtype", tensor.dtype.long_name))


def _storage(storage: Storage) -> list[Any]:
    if storage.dtype is None:
        name, count = "torch.storage.UntypedStorage", storage.nbytes
    else:
        name, count = f"torch.{STORAGES[storage.dtype]}", storage.nbytes // storage.dtype.itemsize
    return [("storage", Global(name), storage.key, "cpu", count), _Op(b"Q")]
