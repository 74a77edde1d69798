"""Trees of torch objects for the tests: walked, compared to the bit, and put into streams by hand."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch

MAGIC = 0x1950A86A20F9469CFC6C


def tensors(tree: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a tree under the keys that lead to them; no key here needs an escape."""
    if isinstance(tree, torch.Tensor):
        yield prefix.rstrip("/"), tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from tensors(value, f"{prefix}{key}/")
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            yield from tensors(value, f"{prefix}{index}/")


def raw(tensor: torch.Tensor) -> bytes:
    """Return the elements of a tensor in C order, as bytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_same(one: Any, other: Any) -> None:
    """Hold two trees against each other: types, order of lists, bits of tensors, attributes of dicts."""
    assert type(one) is type(other)
    if isinstance(one, Mapping):
        assert {(type(key), key) for key in one} == {(type(key), key) for key in other}
        assert getattr(one, "_metadata", None) == getattr(other, "_metadata", None)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        assert raw(one) == raw(other)
    else:
        assert repr(one) == repr(other)


def stream(body: bytes, storages: Mapping[str, bytes] | None = None, itemsize: int = 4) -> bytes:
    """Return a file of before torch 1.6 around the pickle ``body``."""
    parts = [pickle.dumps(each, 2) for each in (MAGIC, 1001, {"little_endian": True})]
    parts += [body, pickle.dumps(list(storages or {}), 2)]
    for data in (storages or {}).values():
        parts += [struct.pack("<q", len(data) // itemsize), data]
    return b"".join(parts)
