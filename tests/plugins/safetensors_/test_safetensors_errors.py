"""Malformed files: as strict as the library, which is asked each time, and stricter about doubled keys."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors

import ckptio
from ckptio import CorruptCheckpointError, UnsupportedError
from independent_safetensors import entry, judge, pack

Make = Callable[..., Path]
A = entry("U8", [1], 0, 1)

MALFORMED: list[tuple[str, Any, bytes, str]] = [
    ("no brace", b"[]      ", b"", "expected '{', found b'\\['"),
    ("not json", b"{x", b"", "header is not valid JSON"),
    ("nul padding", b"{}\0\0", b"", "header is not valid JSON"),
    ("a bom", b"\xef\xbb\xbf{}", b"", "expected '{'"),
    ("utf-8", b'{"\xff": 1}', b"", "not UTF-8"),
    ("utf-16", '{"a": 1}'.encode("utf-16-le"), b"", "not valid JSON"),
    ("lone surrogate", json.dumps({"\ud800": A}).encode(), b"1", "lone surrogate"),
    ("no entry", {"a": 1}, b"", "'a': not a dtype, a shape and two data_offsets"),
    ("a null", {"a": None}, b"", "'a': not a dtype"),
    ("no shape", {"a": {"dtype": "U8", "data_offsets": [0, 1]}}, b"1", "'a': not a dtype"),
    ("three offsets", {"a": {**A, "data_offsets": [0, 1, 1]}}, b"1", "'a': not a dtype"),
    ("offsets as text", {"a": {**A, "data_offsets": ["0", "1"]}}, b"1", "'a': not a dtype"),
    ("a bool offset", {"a": {**A, "data_offsets": [False, True]}}, b"1", "not an integer"),
    ("a float", {"a": entry("U8", [1.0], 0, 1)}, b"1", "not an integer"),  # type: ignore[list-item]
    ("a bool", {"a": entry("U8", [True], 0, 1)}, b"1", "not an integer"),
    ("unknown dtype", {"a": entry("X", [1], 0, 1)}, b"1", "dtype 'X' is unknown; known: BOOL"),
    ("lower case", {"a": entry("u8", [1], 0, 1)}, b"1", "dtype 'u8' is unknown"),
    ("complex128", {"a": entry("C128", [1], 0, 16)}, b"1" * 16, "dtype 'C128' is unknown"),
    ("negative", {"a": entry("U8", [-1], 0, 1)}, b"1", "negative"),
    ("overflow", {"a": entry("U8", [2**33, 2**33], 0, 1)}, b"1", "larger than any array"),
    ("empty overflow", {"a": entry("U8", [2**33, 2**33, 0], 0, 0)}, b"", "larger than any array"),
    ("huge", {"a": entry("U8", [2**64, 0], 0, 0)}, b"", "larger than any array"),
    ("too many bytes", {"a": entry("U8", [1], 0, 2)}, b"12", "2 bytes of data, but U8 .* has 1"),
    ("too few bytes", {"a": entry("F32", [2], 0, 4)}, b"1234", "4 bytes of data, but F32 .* has 8"),
    ("beyond the end", {"a": entry("U8", [2], 0, 2)}, b"1", "data_offsets 0 to 2 are not in 1 bytes"),
    ("far beyond", {"a": entry("U8", [1], 2**62, 2**62 + 1)}, b"1", "are not in 1 bytes"),
    ("backwards", {"a": entry("U8", [1], 1, 0)}, b"1", "data_offsets 1 to 0"),
    ("before the data", {"a": entry("U8", [1], -1, 0)}, b"1", "data_offsets -1 to 0"),
    ("overlap", {"a": A, "b": A}, b"1", "'b': its data begins at 0 and overlaps"),
    ("partly", {"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"123", "'b': .* overlaps"),
    ("hole at the start", {"a": entry("U8", [1], 1, 2)}, b"12", "'a': .* leaves a hole of 1 bytes"),
    ("hole between", {"a": A, "b": entry("U8", [1], 2, 3)}, b"123", "'b': .* leaves a hole of 1 bytes"),
    ("trailing", {"a": A}, b"12", "1 bytes follow the last of 1 tensors"),
    ("trailing nothing", {}, b"1", "1 bytes follow the last of 0 tensors"),
    ("empty inside", {"a": entry("U8", [2], 0, 2), "b": entry("U8", [0], 1, 1)}, b"12", "'b': .* overlaps"),
    ("metadata is a list", {"__metadata__": []}, b"", "__metadata__ is no JSON object"),
    ("metadata is a number", {"__metadata__": 1}, b"", "__metadata__ is no JSON object"),
    ("nan", b'{"__metadata__":{"a":NaN}}', b"", "NaN is no JSON"),
    ("infinite", b'{"__metadata__":{"a":1e999}}', b"", "beyond any float"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("header", "data", "words"), [m[1:] for m in MALFORMED], ids=[m[0] for m in MALFORMED]
)
def test_what_the_library_refuses_is_refused(make: Make, header: Any, data: bytes, words: str) -> None:
    path = make(header, data)
    with pytest.raises(safetensors.SafetensorError):
        judge(path)
    with pytest.raises(CorruptCheckpointError, match=words) as caught:
        ckptio.open(path, checkpoint_format="safetensors")
    assert caught.value.path == str(path)
    assert caught.value.offset is not None


ODD_BUT_VALID: list[tuple[str, Any, bytes]] = [
    ("empty", {}, b""),
    ("padded", b"{}      ", b""),
    ("white space", b'{\n\t"a" : {"shape":[1], "dtype":"U8","data_offsets":[0,1]} }\r\n', b"1"),
    ("null metadata", {"__metadata__": None}, b""),
    ("another order", {"b": entry("U8", [1], 1, 2), "a": A}, b"12"),
    ("empty at the end", {"a": A, "b": entry("F32", [0, 4], 1, 1)}, b"1"),
    ("empty at the start", {"b": entry("F32", [3, 0], 0, 0), "a": A}, b"1"),
    ("unaligned", {"a": A, "b": entry("F32", [1], 1, 5)}, b"12345"),
    ("a further key", {"a": {**A, "note": 1}}, b"1"),
    ("metadata at the end", {"a": A, "__metadata__": {"k": "v"}}, b"1"),
    ("odd names", {"": A, "/../\0": entry("U8", [1], 1, 2), "é" * 300: entry("U8", [], 2, 3)}, b"123"),
    ("escapes", b'{"\\ud83d\\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
]


@pytest.mark.parametrize(
    ("header", "data"), [m[1:] for m in ODD_BUT_VALID], ids=[m[0] for m in ODD_BUT_VALID]
)
def test_what_the_library_takes_is_taken(make: Make, header: Any, data: bytes) -> None:
    path = make(header, data)
    expected = {name: data for name, (_, _, data) in judge(path).items()}
    with ckptio.open(path) as checkpoint:
        assert {name: checkpoint.read(name).tobytes() for name in checkpoint.specs} == expected


def test_a_header_that_does_not_begin_with_its_brace(make: Make) -> None:
    # The format's description forbids it; the library takes it all the same.
    path = make(b" {}     ")
    assert judge(path) == {}
    with pytest.raises(CorruptCheckpointError, match="expected '{', found b' '"):
        ckptio.open(path, checkpoint_format="safetensors")


@pytest.mark.parametrize("twice", ["a", "__metadata__"])
def test_a_key_that_occurs_twice(make: Make, twice: str) -> None:
    raw = json.dumps({twice: {}, "x": A}).replace('"x"', f'"{twice}"').encode()
    with pytest.raises(CorruptCheckpointError, match=f"'{twice}' occurs twice"):
        ckptio.open(make(raw, b"1"), checkpoint_format="safetensors")
    inner = b'{"__metadata__": {"k": "1", "k": "2"}}'
    with pytest.raises(CorruptCheckpointError, match="'k' occurs twice"):
        ckptio.open(make(inner), checkpoint_format="safetensors")


def test_errors_point_at_the_byte(make: Make) -> None:
    header = {"é": A, "b": entry("X", [1], 1, 2)}
    path = make(header, b"12")
    with pytest.raises(CorruptCheckpointError) as caught:
        ckptio.open(path)
    assert path.read_bytes()[caught.value.offset :].startswith(b'"b"')
    path = make({"a": A, "b": entry("U8", [1], 2, 3)}, b"123")
    with pytest.raises(CorruptCheckpointError) as caught:
        ckptio.open(path)
    assert path.read_bytes()[caught.value.offset :] == b"3"


def test_elements_that_are_no_whole_bytes_are_refused_by_name(make: Make) -> None:
    path = make(
        {"a": entry("F4", [2], 0, 1), "b": entry("U8", [1], 1, 2), "c": entry("F6_E2M3", [4], 2, 5)}, b"12345"
    )
    assert len(judge(path)) == 3
    with pytest.raises(UnsupportedError) as caught:
        ckptio.open(path)
    assert [(problem.where, problem.what[:13]) for problem in caught.value.problems] == [
        ("a", "dtype F4: its"),
        ("c", "dtype F6_E2M3"),
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends inside the length"),
        (b"\2\0\0", "ends inside the length"),
        (struct.pack("<Q", 2), "header of 2 bytes cannot be in the 0"),
        (struct.pack("<Q", 2**63) + b"{}", "cannot be in the 2"),
        (struct.pack("<Q", 0) + b"", "expected '{', found b''"),
    ],
)
def test_lengths_are_held_against_the_file(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match=words):
        ckptio.open(path, checkpoint_format="safetensors")


def test_a_header_above_the_limit_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 100_000_001) + b"{")
    with path.open("r+b") as file:
        file.truncate(100_000_009)
    with pytest.raises(safetensors.SafetensorError), safetensors.safe_open(path, "np"):
        pass
    with pytest.raises(CorruptCheckpointError, match="more than the format's 100000000"):
        ckptio.open(path, checkpoint_format="safetensors")


def test_bounds(make: Make) -> None:
    path = make({f"t{i}": entry("U8", [1], i, i + 1) for i in range(5)}, b"12345")
    with ckptio.raised_limits(tensors=4), pytest.raises(CorruptCheckpointError, match="5 tensors are more"):
        ckptio.open(path)
    with ckptio.raised_limits(header_bytes=20), pytest.raises(CorruptCheckpointError, match="larger than 20"):
        ckptio.open(path)
    path = make({"a": entry("U8", [1] * 65, 0, 1)}, b"1")
    with pytest.raises(CorruptCheckpointError, match="65 dimensions are more than the limit of 64"):
        ckptio.open(path)


BOMBS = {
    "lists": b'{"a":' + b"[" * 200_000,
    "maps": b'{"a":' * 100_000,
    "closed lists": b'{"__metadata__":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
    "empty lists": b'{"__metadata__":{"a":[' + b"[]," * 50_000 + b"[]]}}",
    "digits": b'{"a":' + b"9" * 100_000 + b"}",
    "a long name": b'{"' + b"n" * 300_000 + b'":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}}',
    "a long dtype": b'{"a":{"dtype":"' + b"n" * 300_000 + b'","shape":[2],"data_offsets":[0,1]}}',
    "many entries": b"{" + b",".join(b'"%d":0' % i for i in range(20_000)) + b"}",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_bombs_are_refused_in_bounded_time_and_memory(make: Make, kind: str) -> None:
    path = make(BOMBS[kind], b"1")
    tracemalloc.start()
    began = time.perf_counter()
    try:
        with pytest.raises(CorruptCheckpointError) as caught:
            ckptio.open(path, checkpoint_format="safetensors")
        assert time.perf_counter() - began < 1
        assert tracemalloc.get_traced_memory()[1] < (50 << 20) + 20 * len(BOMBS[kind])
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 2000


def test_many_tensors_cost_no_more_than_twenty_headers(make: Make) -> None:
    header = json.dumps(
        {f"{i}": entry("U8", [], i, i + 1) for i in range(5_000)}, separators=(",", ":")
    ).encode()
    path = make(header, bytes(5_000))
    tracemalloc.start()
    try:
        ckptio.open(path).close()
        assert tracemalloc.get_traced_memory()[1] < 20 * len(header)
    finally:
        tracemalloc.stop()


def test_the_mistaken_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"CKPT" + struct.pack("<II", 1, 0))
    with pytest.raises(CorruptCheckpointError) as caught:
        ckptio.open(path, checkpoint_format="safetensors")
    assert "looks like statedict" in "".join(caught.value.__notes__)
    path = tmp_path / "y.ckpt"
    path.write_bytes(pack({"a": A}, b"1"))
    with pytest.raises(CorruptCheckpointError) as caught:
        ckptio.open(path, checkpoint_format="statedict")
    assert "looks like safetensors" in "".join(caught.value.__notes__)
