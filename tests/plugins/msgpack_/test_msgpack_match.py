"""Which files are taken for msgpack: there is no magic, so the first values decide."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import msgpack
import numpy as np
import pytest

from ckptio import Confidence, Probe
from ckptio_msgpack.format import MsgpackFormat
from golden import GOLDEN, all_golden, golden_id

FORMAT = MsgpackFormat()
OTHERS = [path for path in all_golden("**/*") if path.is_file() and path.suffix != ".msgpack"]


def confidence(path: Path) -> Confidence:
    probe = Probe(path)
    try:
        return FORMAT.match(probe).confidence
    finally:
        probe.close()


@pytest.fixture
def sure(tmp_path: Path) -> Callable[[bytes], Confidence]:
    def of_bytes(data: bytes, name: str = "file") -> Confidence:
        path = tmp_path / name
        path.write_bytes(data)
        return confidence(path)

    return of_bytes


@pytest.mark.parametrize("path", all_golden("flax/*.msgpack"), ids=golden_id)
def test_flax_files_are_told_by_content(path: Path, sure: Callable[[bytes], Confidence]) -> None:
    data = path.read_bytes()
    assert sure(data) is Confidence.SURE
    # Cut after the first array, it is still that: opening it then says what is wrong.
    assert sure(data[:-1]) is Confidence.SURE


def test_files_of_other_formats_are_not_claimed() -> None:
    kinds = {".bin", ".ckpt", ".json", ".npz", ".safetensors", ".pt", ".gguf"}
    assert kinds <= {path.suffix for path in OTHERS}
    claimed = [path.relative_to(GOLDEN) for path in OTHERS if confidence(path) is not Confidence.NO]
    assert claimed == []


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_are_not_claimed(protocol: int, sure: Callable[[bytes], Confidence]) -> None:
    for value in ({}, {"a": np.zeros(3)}, [1, 2], None, "text"):
        assert sure(pickle.dumps(value, protocol)) is Confidence.NO


def test_text_and_random_bytes_are_not_claimed(sure: Callable[[bytes], Confidence]) -> None:
    texts: list[Any] = [{}, {"a": 1}, [1], "x", 1]
    assert all(sure(json.dumps(text).encode()) is Confidence.NO for text in texts)
    assert sure(b"") is Confidence.NO
    generator = random.Random(0)
    for _ in range(200):
        assert sure(generator.randbytes(generator.randrange(16, 6000))) is Confidence.NO
        # Half of them start as a map would.
        assert sure(b"\x85" + generator.randbytes(300)) is Confidence.NO


def test_an_array_beyond_the_first_4_kib_is_found(sure: Callable[[bytes], Confidence]) -> None:
    tree = {"a": "x" * 30_000, "b": np.zeros(100_000)}
    assert sure(flax.serialization.msgpack_serialize(tree)) is Confidence.SURE


def test_a_chunked_array_is_enough(
    sure: Callable[[bytes], Confidence], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 100)
    data = flax.serialization.msgpack_serialize({"a": np.zeros(100)})
    assert sure(data[:35]) is Confidence.SURE


def test_plain_values_alone_must_be_the_whole_file(sure: Callable[[bytes], Confidence]) -> None:
    data = msgpack.packb({"step": 3, "names": ["a", "b"], "none": {}})
    assert sure(data) is Confidence.SURE
    assert sure(data[:-1]) is Confidence.NO
    assert sure(data + b"\x00") is Confidence.NO
    assert sure(msgpack.packb({"text": "x" * 100_000})) is Confidence.NO


def test_the_suffix_is_a_name_only(tmp_path: Path) -> None:
    path = tmp_path / "x.msgpack"
    path.write_bytes(b"\x80")
    assert confidence(path) is Confidence.NAME
    (tmp_path / "directory.pickle").mkdir()
    assert confidence(tmp_path / "directory.pickle") is Confidence.NO
