"""Sets of GGUF files that are not whole, or claim what is not so: made by hand, file for file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import ckptio
from ckptio import CkptError, CorruptCheckpointError
from ckptio.testing.bounds import memory_bound, time_bound
from gguf_files import I32, STRING, U16, U32, file, head, tensor, text, value

ONE, TWO, THREE = (f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3))


def said(no: int | None = None, count: int | None = None, tensors: int | None = None) -> list[bytes]:
    """Return what a file says of its set."""
    values = {b"split.no": (U16, "<H", no), b"split.count": (U16, "<H", count)}
    values[b"split.tensors.count"] = (I32, "<i", tensors)
    return [
        value(key, kind, struct.pack(code, number))
        for key, (kind, code, number) in values.items()
        if number is not None
    ]


def part(values: list[bytes], *names: bytes) -> bytes:
    """Return a file with these values and these tensors of four zeros."""
    tensors = [tensor(name, offset=32 * index) for index, name in enumerate(names)]
    return file(head(len(names), len(values)), *values, *tensors, data=bytes(32 * len(names)))


SOUND = {
    ONE: part(said(0, 3, 3), b"a"),
    TWO: part(said(1, 3, 3), b"b"),
    THREE: part(said(2, 3, 3), b"c"),
}
Files = dict[str, bytes | None]
DAMAGED: dict[str, tuple[Files, list[str]]] = {
    "another order": (
        {TWO: part(said(2, 3, 3), b"b"), THREE: part(said(1, 3, 3), b"c")},
        [f"{TWO}: split.no is 2, where 1 is expected", f"{THREE}: split.no is 1, where 2 is expected"],
    ),
    "two of one place": ({THREE: SOUND[TWO]}, [f"{THREE}: split.no is 1", "the tensor 'b' is in"]),
    "of another set": ({THREE: part(said(2, 4, 3), b"c")}, [f"{THREE}: split.count is 4, where 3 is"]),
    "no number": ({TWO: part(said(None, 3, 3), b"b")}, [f"{TWO}: it has no split.no"]),
    "no count": ({TWO: part(said(1, None, 3), b"b")}, [f"{TWO}: it has no split.count"]),
    "no count of tensors": ({ONE: part(said(0, 3), b"a")}, [f"{ONE}: it has no split.tensors.count"]),
    "other counts of tensors": (
        {TWO: part(said(1, 3, 5), b"b")},
        [f"{TWO}: split.tensors.count is 5, where 3 is expected"],
    ),
    "a tensor too few": (
        {TWO: part(said(1, 3, 3))},
        [f"{ONE}: split.tensors.count is 3, but the files have 2"],
    ),
    "a tensor twice": (
        {TWO: part(said(1, 3, 3), b"a")},
        [f"{TWO}: the tensor 'a' is in {ONE} too"],
    ),
    "a negative count": ({ONE: part(said(0, 3, -3), b"a")}, [f"{ONE}: split.tensors.count is -3, but"]),
    "a number in u32": (
        {TWO: part([value(b"split.no", U32, struct.pack("<I", 1)), *said(None, 3, 3)], b"b")},
        [f"{TWO}: split.no is 1 (u32), where a u16 is expected"],
    ),
    "a number that is text": (
        {TWO: part([value(b"split.no", STRING, text(b"1" * 10**5)), *said(None, 3, 3)], b"b")},
        [f"{TWO}: split.no is '1111", "… (str), where a u16 is expected"],
    ),
    "all of it": (
        {ONE: part(said(0, 3, 9), b"a"), TWO: part(said(7, 3, 9), b"a"), THREE: part(said(2, 2), b"c")},
        [
            f"{TWO}: split.no is 7",
            f"{THREE}: split.count is 2",
            f"{TWO}: the tensor 'a' is in {ONE} too",
            "but the files have 3",
        ],
    ),
}


def put(folder: Path, files: Files) -> None:
    for name, content in {**SOUND, **files}.items():
        if content is not None:
            (folder / name).write_bytes(content)


def refused(path: Path) -> str:
    with pytest.raises(CorruptCheckpointError) as caught:
        ckptio.open(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)


def test_the_sound_set_is_sound(tmp_path: Path) -> None:
    """What the damaged ones differ from; only the first has to say how many tensors there are."""
    put(tmp_path, {THREE: part(said(2, 3), b"c")})
    assert list(ckptio.load(tmp_path / TWO)) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", DAMAGED)
def test_files_that_disagree_are_refused_with_all_that_is_wrong(kind: str, tmp_path: Path) -> None:
    files, wrong = DAMAGED[kind]
    put(tmp_path, files)
    message = refused(tmp_path / ONE)
    assert "the 3 files disagree; fetch them again, or split the model anew:\n" in message
    assert [each for each in wrong if each not in message] == []
    assert len(message) < 2000


@pytest.mark.parametrize(("left", "missing"), [(ONE, [TWO, THREE]), (THREE, [ONE, TWO])])
def test_a_file_alone_is_never_half_a_model(left: str, missing: list[str], tmp_path: Path) -> None:
    put(tmp_path, dict.fromkeys(missing))
    (tmp_path / missing[0]).mkdir()
    for path in (tmp_path / left, tmp_path):
        with pytest.raises(CorruptCheckpointError) as caught:
            ckptio.open(path)
        message = str(caught.value)
        assert message.startswith(
            f"{tmp_path / left}: files of this model are missing (2 of 3); put them beside"
        )
        assert message.splitlines()[1:] == [f"  {name}" for name in missing]
    with pytest.raises(CorruptCheckpointError):
        ckptio.convert(tmp_path / left, tmp_path / "a.safetensors")
    assert not (tmp_path / "a.safetensors").exists()


@pytest.mark.parametrize(
    "name", ["m.gguf", "m-00001-of-00004.gguf", "m-00002-of-00003.gguf", "m-1-of-3.gguf"]
)
def test_a_file_of_a_set_under_another_name_is_told_its_own(name: str, tmp_path: Path) -> None:
    put(tmp_path, {TWO: None})
    (tmp_path / ONE).rename(tmp_path / name)
    message = refused(tmp_path / name)
    assert "file 1 of 3 of a model, but its name does not end in -00001-of-00003.gguf" in message


def test_a_name_of_a_set_on_a_file_of_none(tmp_path: Path) -> None:
    """The content counts, as it does for llama.cpp, unless the others are there too."""
    put(tmp_path, {ONE: part([], b"a"), TWO: None, THREE: None})
    assert list(ckptio.load(tmp_path / ONE)) == ["a"]
    put(tmp_path, {ONE: part([], b"a"), TWO: None})
    message = refused(tmp_path / ONE)
    assert (
        "makes it one of 3 files, but it has no split.count that says so; if it is a whole model" in message
    )
    assert message.splitlines()[1:] == [f"  {THREE}"]


@pytest.mark.parametrize("count", [0, 1])
def test_a_whole_file_may_say_that_it_is_one(count: int, tmp_path: Path) -> None:
    """A count of 0 is what gguf-split leaves when it merges."""
    content = part(said(0, count, 2), b"a", b"b")
    (tmp_path / "a.gguf").write_bytes(content)
    ckptio.convert(tmp_path / "a.gguf", tmp_path / "b.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == content


BILLION = value(b"split.count", U32, struct.pack("<I", 10**9))
HOSTILE = {
    "65535 files": ("m-00001-of-65535.gguf", said(0, 65535, 1), "missing (65534 of 65535)"),
    "10^9 files": (
        ONE,
        [BILLION],
        "1000000000 (u32), where a u16",
    ),
    "a count that is text": (ONE, [value(b"split.count", STRING, text(b"3"))], "'3' (str), where a u16 is"),
    "no number": (ONE, said(None, 3, 3), "it has no split.no"),
    "beyond the last": (ONE, said(65535, 3, 3), "file 65536 of 3 of a model, but its name"),
    "a name of dots": ("..-00001-of-00002.gguf", said(0, 2, 2), "..-00002-of-00002.gguf"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_set_is_refused_soon_and_in_little_memory(kind: str, tmp_path: Path) -> None:
    name, values, why = HOSTILE[kind]
    (tmp_path / name).write_bytes(part(values, b"a"))
    with time_bound(1.0, kind), memory_bound(16 << 20, kind):
        message = refused(tmp_path / name)
    assert why in message
    assert len(message) < 2000


def test_the_limit_of_tensors_is_that_of_all_files(tmp_path: Path) -> None:
    put(tmp_path, {})
    with ckptio.raised_limits(tensors=2):
        assert "3 tensors are more than the limit of 2" in refused(tmp_path / ONE)


def test_a_flipped_bit_or_a_cut_of_any_file_is_refused_or_read(tmp_path: Path) -> None:
    put(tmp_path, {})
    outcomes = {"refused": 0, "read": 0}
    for name, content in SOUND.items():
        damaged = [content[:length] for length in range(0, len(content), 7)]
        for bit in range(0, 8 * len(content), 3):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            damaged.append(bytes(flipped))
        for each in damaged:
            (tmp_path / name).write_bytes(each)
            try:
                with ckptio.open(tmp_path / ONE, checkpoint_format="gguf") as checkpoint:
                    found = [checkpoint.read(key) for key in checkpoint.specs]
                assert len(found) == 3
                outcomes["read"] += 1
            except CkptError:
                outcomes["refused"] += 1
        (tmp_path / name).write_bytes(content)
    assert outcomes["refused"] > 500
    assert outcomes["read"] > 100
