"""Names that nest, and the one JSON encoding of plain values."""

from __future__ import annotations

import itertools
import json
import math
import struct
from typing import Any

import numpy as np
import pytest

from ckptio import OptionError
from ckptio.leaves import can_nest, decode_leaf, encode_leaf, join_keys, leaf_problem, same_leaf, split_name


def bits(value: float) -> str:
    return struct.pack(">d", value).hex()


def from_bits(text: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(text))[0])


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["a"], "a"),
        (["a", "b"], "a/b"),
        ([""], ""),
        (["", ""], "/"),
        (["a/b", "c"], "a~1b/c"),
        (["~", "~1", "/~0/"], "~0/~01/~1~00~1"),
        (["é", "\0", " "], "é/\0/ "),
    ],
)
def test_keys_are_joined_and_split_as_rfc_6901_says(keys: list[str], name: str) -> None:
    assert join_keys(keys) == name
    assert split_name(name) == keys


@pytest.mark.parametrize("name", ["~", "a~", "~2", "a/~b", "~~0"])
def test_a_stray_tilde_cannot_be_split(name: str) -> None:
    with pytest.raises(ValueError, match="neither ~0 nor ~1"):
        split_name(name)
    assert not can_nest([name, "other"])


@pytest.mark.parametrize(
    ("names", "nests"),
    [
        ([], True),
        (["a"], True),
        (["a/b", "a/c", "d"], True),
        (["a", "ab", "a.b"], True),
        (["a", "a/b"], False),
        (["a/b/c/d", "x", "a/b"], False),
        (["a~1", "a~1/b"], False),
        (["a", "a~1b"], True),
        (["", "/a"], False),
        (["a/", "a"], False),
        (["a/", "a//"], False),
        (["/a", "/b"], True),
        (["a", "a-b", "a.b/c", "a/b"], False),
        (["a", "a-b", "a.b/c", "ab/c", "b/a"], True),
        (["a", "aa", "aaa", "aa/b"], False),
        (["/" * 100_000, "x/" * 100_000], True),
        (["/" * 100_000, "/" * 99_999], False),
    ],
)
def test_names_nest_when_none_is_the_path_of_a_parent(names: list[str], nests: bool) -> None:
    assert can_nest(names) is nests
    assert can_nest(reversed(names)) is nests


def test_nesting_is_decided_as_the_keys_say() -> None:
    names = ["".join(letters) for size in range(4) for letters in itertools.product("a/-", repeat=size)]
    for some in itertools.combinations(names, 3):
        keys = [split_name(name) for name in some]
        clash = any(one == other[: len(one)] for one in keys for other in keys if one is not other)
        assert can_nest(some) is not clash, some


ENCODED: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "true"),
    (0, "0"),
    (2**64, "18446744073709551616"),
    (-1.5, "-1.5"),
    (1.0, "1.0"),
    (0.1, "0.1"),
    (5e-324, "5e-324"),
    (-0.0, "-0.0"),
    (math.inf, '{"$float": "inf"}'),
    (-math.inf, '{"$float": "-inf"}'),
    (math.nan, '{"$float": "nan"}'),
    (from_bits("fff8000000000123"), '{"$float": "nan:fff8000000000123"}'),
    (complex(1.5, -0.0), '{"$complex": [1.5, -0.0]}'),
    (complex(-math.inf, 2), '{"$complex": [{"$float": "-inf"}, 2.0]}'),
    ("hé\0", '"h\\u00e9\\u0000"'),
    (b"", '{"$bytes": ""}'),
    (b"\xff\x00abc", '{"$bytes": "/wBhYmM="}'),
    ({}, "{}"),
    ([], "[]"),
    ([1, [None, [b"x", {}]]], '[1, [null, [{"$bytes": "eA=="}, {}]]]'),
]


@pytest.mark.parametrize(("leaf", "text"), ENCODED, ids=[text for _, text in ENCODED])
def test_a_leaf_is_strict_json_and_comes_back_to_the_bit(leaf: Any, text: str) -> None:
    assert json.dumps(encode_leaf(leaf), allow_nan=False) == text
    again = decode_leaf(json.loads(text))
    assert type(again) is type(leaf)
    if isinstance(leaf, float):
        assert bits(again) == bits(leaf)
    elif isinstance(leaf, complex):
        assert (bits(again.real), bits(again.imag)) == (bits(leaf.real), bits(leaf.imag))
    else:
        assert again == leaf
    assert same_leaf(again, leaf)


def test_leaves_of_different_type_or_bits_are_not_the_same() -> None:
    different = [leaf for leaf, _ in ENCODED]
    different += [False, 1, 0.0, from_bits("7ff8000000000001"), "1", b"1", 1j, [1], ["1"], [[1]]]
    for index, one in enumerate(different):
        for other in different[index + 1 :]:
            assert not same_leaf(one, other), (one, other)


def test_subclasses_become_the_plain_type() -> None:
    for value, plain in ((np.float64(0.5), 0.5), (np.str_("x"), "x"), ((1, 2), [1, 2])):
        encoded = encode_leaf(value)
        assert type(encoded) is type(plain)
        assert encoded == plain
        assert same_leaf(value, plain)


@pytest.mark.parametrize(
    "value",
    [np.zeros(2), np.int64(1), {"a": 1}, pytest.param([object()], id="[object()]"), {1}, bytearray(b"x")],
    ids=repr,
)
def test_what_is_no_leaf_is_refused(value: Any) -> None:
    assert leaf_problem(value) is not None
    with pytest.raises(OptionError):
        encode_leaf(value)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '{"$float": "1.5"}',
        '{"$float": 1.5}',
        '{"$float": "nan:00"}',
        '{"$float": "nan:3ff0000000000000"}',
        '{"$float": "nan:zzzzzzzzzzzzzzzz"}',
        '{"$float": "inf", "more": 1}',
        '{"$complex": [1]}',
        '{"$complex": ["1", 2]}',
        '{"$complex": [true, 2]}',
        '{"$complex": [[1], 2]}',
        '{"$bytes": "%"}',
        '{"$bytes": "eA"}',
        '[1, {}, [{"x": 0}]]',
        "[" * 600 + "]" * 600,
    ],
)
def test_what_was_not_encoded_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_leaf(json.loads(text))


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def test_deep_lists_are_encoded_and_deeper_ones_refused() -> None:
    deep = nested(500)
    assert decode_leaf(encode_leaf(deep)) == deep
    assert same_leaf(deep, deep)
    for depth in (501, 100_000):
        assert leaf_problem(nested(depth)) == "lists are nested more than 500 deep"
