"""Views of storages: any strides, in C order, in bounded memory."""

from __future__ import annotations

import io
import math
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import ckptio
from ckptio import Checkpoint
from ckptio_torch.views import is_contiguous, reach, view_chunks
from torch_trees import raw, stream

SHAPES = [
    ((), (), 0),
    ((4,), (1,), 3),
    ((4,), (0,), 3),
    ((3, 4), (1, 3), 0),
    ((3, 4), (8, 2), 1),
    ((2, 3, 4), (1, 8, 2), 5),
    ((2, 1, 3), (5, 999, 1), 0),
    ((4, 4), (1, 1), 0),
    ((2, 5, 3), (0, 7, 1), 2),
    ((300, 200), (1, 300), 0),
    ((70, 9, 11), (1, 770, 70), 4),
]


@pytest.mark.parametrize(("shape", "strides", "offset"), SHAPES)
@pytest.mark.parametrize("max_bytes", [1, 40, 1 << 20])
def test_chunks_are_the_elements_in_c_order(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, max_bytes: int
) -> None:
    storage = np.arange(70_000, dtype="<u4")
    expected = np.lib.stride_tricks.as_strided(storage[offset:], shape, [4 * step for step in strides])

    def fetch(start: int, size: int) -> bytes:
        assert 4 * offset <= start
        assert start + size <= 4 * (offset + reach(shape, strides))
        return storage.tobytes()[start : start + size]

    chunks = list(view_chunks(fetch, shape, strides, offset, 4, max_bytes))
    assert b"".join(chunks) == expected.tobytes()
    assert all(len(chunk) <= max(4, max_bytes) and len(chunk) % 4 == 0 for chunk in chunks)
    assert (
        is_contiguous(shape, strides)
        == torch.as_strided(torch.arange(70_000), shape, strides).is_contiguous()
    )


def test_a_large_transposed_view_is_read_in_pieces(tmp_path: Path) -> None:
    rows, columns = 3000, 2500
    tensor = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns).T
    torch.save(
        {"t": tensor, "e": torch.ones(1, columns)[:, ::2].expand(1000, columns // 2)}, tmp_path / "x.pt"
    )
    with ckptio.open(tmp_path / "x.pt") as checkpoint:
        tracemalloc.start()
        position = 0
        whole = raw(tensor)
        for chunk in checkpoint.chunks("t", 1 << 20):
            assert chunk == whole[position : position + len(chunk)]
            position += len(chunk)
        assert position == len(whole) == 4 * rows * columns
        size = sum(len(chunk) for chunk in checkpoint.chunks("e", 1 << 16))
        assert size == 4 * 1000 * (columns // 2)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 * len(whole) + (50 << 20)


def test_a_far_reaching_view_is_not_read_with_all_that_lies_between(tmp_path: Path) -> None:
    # Two columns of a wide matrix: one element in every 32 KiB is wanted.
    read = 0
    storage = np.arange(1 << 20, dtype="<u4").tobytes()

    def fetch(start: int, size: int) -> bytes:
        nonlocal read
        read += size
        return storage[start : start + size]

    chunks = list(view_chunks(fetch, (2, 128), (1, 8192), 0, 4, 1 << 20))
    expected = np.frombuffer(storage, "<u4").reshape(128, 8192)[:, :2].T
    assert b"".join(chunks) == expected.tobytes()
    assert read <= 8 * 4 * 2 * 128


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("order", ["little", "big"])
def test_archives_packed_anew_and_of_other_byte_order(compression: int, order: str, tmp_path: Path) -> None:
    tensors = {
        "f": torch.arange(12, dtype=torch.float32).reshape(3, 4),
        "h": torch.arange(5, dtype=torch.bfloat16),
        "u": torch.arange(5, dtype=torch.uint8),
        "c": torch.arange(4).to(torch.complex64) * (1 + 2j),
        "z": torch.arange(3).to(torch.complex128) * (1 + 2j),
    }
    torch.save({**tensors, "t": tensors["f"].T}, tmp_path / "x.pt")
    words = {0: 4, 1: 2, 2: 1, 3: 4, 4: 8}
    out = io.BytesIO()
    with zipfile.ZipFile(tmp_path / "x.pt") as old, zipfile.ZipFile(out, "w", compression) as new:
        for name in reversed(old.namelist()):
            data = old.read(name)
            if name.endswith("/byteorder"):
                data = order.encode()
            elif "/data/" in name and order == "big":
                word = words[int(name.rpartition("/")[2])]
                data = np.frombuffer(data, f"u{word}").byteswap().tobytes()
            new.writestr(name, data)
    path = tmp_path / "y.pt"
    path.write_bytes(out.getvalue())
    with ckptio.open(path) as checkpoint:
        assert (checkpoint.spans("u") is None) == (compression == zipfile.ZIP_DEFLATED)
        assert (checkpoint.spans("f") is None) == (compression == zipfile.ZIP_DEFLATED or order == "big")
        for name, tensor in {**tensors, "t": tensors["f"].T}.items():
            assert checkpoint.read(name).tobytes() == raw(tensor)
            assert b"".join(checkpoint.chunks(name, 3)) == raw(tensor)


def test_empty_views_are_not_ties_and_cost_nothing(tmp_path: Path) -> None:
    base = torch.arange(4)
    torch.save({"a": base[:0], "b": base[:0], "c": base, "d": base[4:]}, tmp_path / "x.pt")
    with ckptio.open(tmp_path / "x.pt") as checkpoint:
        assert dict(checkpoint.aliases) == {}
        assert [math.prod(checkpoint.read(name).shape) for name in "abcd"] == [0, 0, 4, 0]


def test_views_of_several_types_of_one_storage_are_no_ties(opened: Callable[..., Checkpoint]) -> None:
    # torch does not write this, but two pickles can name one storage by two classes.
    with pytest.raises(ckptio.CorruptCheckpointError, match="not 16"):
        opened(_two_types(16))
    checkpoint = opened(_two_types(8))
    assert dict(checkpoint.aliases) == {}
    assert checkpoint.read("i").tobytes() == checkpoint.read("f").tobytes() == bytes(8)


def _two_types(size: int) -> bytes:
    def tensor(kind: str, count: int) -> bytes:
        storage = b"(X\x07\0\0\0storagectorch\n%sStorage\nX\x01\0\0\0kX\x03\0\0\0cpuK%cNtQ" % (
            kind.encode(),
            count,
        )
        return b"ctorch._utils\n_rebuild_tensor\n(%sK\0K%c\x85K\1\x85tR" % (storage, count)

    body = b"\x80\x02}(X\x01\0\0\0f%sX\x01\0\0\0i%su." % (tensor("Float", 2), tensor("Int", size // 4))
    return stream(body, {"k": bytes(8)})
