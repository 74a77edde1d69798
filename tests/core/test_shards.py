"""Sharded sets: what an index may say, that it and its shards agree, and where it never leads."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from ckptio import Checkpoint, CorruptCheckpointError, MemoryCheckpoint, Problem, UnsupportedError
from ckptio.shards import JoinedCheckpoint, open_shards, read_index
from ckptio.weights import locate
from golden import all_golden, golden_id

ONE = np.arange(6, dtype="<f4").reshape(2, 3)
TWO = np.arange(4, dtype="<i8")


class Part(MemoryCheckpoint):
    """A shard in memory that remembers what was done with it."""

    closed = False
    checks = 0

    def chunks(self, name: str, max_bytes: int = 1 << 20) -> Any:
        assert not self.closed
        return super().chunks(name, max_bytes)

    def check_unchanged(self) -> None:
        self.checks += 1

    def omissions(self) -> list[Problem]:
        return [Problem(next(iter(self.specs)), "left behind")]

    def crc32(self, name: str) -> int:
        return len(name)

    def close(self) -> None:
        self.closed = True


Opener = Callable[[Path], Checkpoint]


def shards(**parts: Checkpoint) -> Opener:
    return lambda path: parts[path.name]


def write_set(folder: Path, weight_map: Mapping[str, Any], **metadata: Any) -> Path:
    """Write an index, and an empty file for every shard that can be one."""
    for name in weight_map.values():
        if isinstance(name, str) and name and "/" not in name and "\0" not in name and name[0] != ".":
            (folder / name).touch()
    path = folder / "model.index.json"
    path.write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
    return path


def two_parts() -> tuple[Part, Part]:
    return Part({"a": ONE, "b": TWO}), Part({"c": ONE})


WEIGHTS = {"a": "x", "b": "x", "c": "y"}
BYTES = 24 + 32 + 24


# The index


@pytest.mark.parametrize("path", all_golden("hf/**/*.index.json"), ids=golden_id)
def test_every_golden_index(path: Path) -> None:
    index = read_index(path)
    content = json.loads(path.read_text())
    assert index.weight_map == content["weight_map"]
    assert index.total_size == content["metadata"]["total_size"]
    assert index.files == sorted(set(content["weight_map"].values()))
    assert index.metadata == {}
    assert index.aliases == {k: v for k, v in content["metadata"].items() if isinstance(v, str)}


def test_a_tie_in_the_metadata_is_an_alias_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = write_set(
        tmp_path, WEIGHTS, total_size=1.0, total_parameters=3, tied="a", a="c", format="c", note="d", n=[1]
    )
    index = read_index(path)
    assert index.aliases == {"tied": "a"}
    assert index.metadata == {"a": "c", "format": "c", "note": "d", "n": [1]}
    assert index.total_size == 1


@pytest.mark.parametrize("metadata", ["", '"metadata": null,'])
def test_an_index_without_metadata(tmp_path: Path, metadata: str) -> None:
    (tmp_path / "i").write_text(f'{{{metadata} "weight_map": {{}}}}')
    assert read_index(tmp_path / "i").total_size is None


@pytest.mark.parametrize(
    "name", ["../x", "/abs", "a/b", "", ".", "..", "nul\0", "a\\b", None, 3, ["x"], {"x": 1}], ids=repr
)
def test_a_shard_outside_of_the_directory_is_refused_by_name(tmp_path: Path, name: Any) -> None:
    path = write_set(tmp_path, {"a": "x", "b": name})
    with pytest.raises(CorruptCheckpointError, match="plain file name beside the index") as caught:
        read_index(path)
    assert f"\n  {name!r}" in str(caught.value)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "no weight_map"),
        ('{"weight_map": []}', "no weight_map"),
        ('{"weight_map": {}, "metadata": 3}', "metadata that is no object"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "'a' occurs twice"),
        ('{"weight_map": {}, "weight_map": {}}', "'weight_map' occurs twice"),
        ('{"weight_map": {}, "metadata": {"total_size": "3"}}', "total_size is not a number"),
        ('{"weight_map": {}, "metadata": {"total_size": true}}', "total_size is not a number"),
        ('{"weight_map": {}, "metadata": {"total_size": -1}}', "total_size is not a number"),
        ('{"weight_map": {}, "metadata": {"total_size": 1.5}}', "total_size is not a number"),
        ('{"weight_map": {}, "metadata": {"a": NaN}}', "NaN is no JSON"),
        ('{"weight_map": {}, "metadata": {"a": 1e999}}', "beyond any float"),
        ('{"weight_map": {"\\ud800": "x"}}', "lone surrogate"),
        ('{"weight_map": {}, "metadata": {"a": ' + "[" * 600 + "]" * 600 + "}}", "nested more than 512"),
        ('{"weight_map": ' + "[" * 100_000, "nested|not valid JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
    ids=lambda value: value[:40],
)
def test_what_is_no_index(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "model.index.json"
    path.write_text(text)
    with pytest.raises(CorruptCheckpointError, match=words):
        read_index(path)


def test_an_error_in_the_json_has_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "i"
    path.write_bytes('{"é": x}'.encode())
    with pytest.raises(CorruptCheckpointError) as caught:
        read_index(path)
    assert caught.value.offset == 7
    path.write_bytes(b'{"\xff": 1}')
    with pytest.raises(CorruptCheckpointError, match="UTF-8") as caught:
        read_index(path)
    assert caught.value.offset == 2


def test_bounds(tmp_path: Path) -> None:
    path = write_set(tmp_path, WEIGHTS)
    with ckptio.raised_limits(tensors=2), pytest.raises(CorruptCheckpointError, match="3 tensors"):
        read_index(path)
    with ckptio.raised_limits(header_bytes=10), pytest.raises(CorruptCheckpointError, match="larger than 10"):
        read_index(path)


# A set of shards


def test_the_parts_are_one_checkpoint(tmp_path: Path) -> None:
    x, y = two_parts()
    index = read_index(write_set(tmp_path, WEIGHTS, total_size=BYTES, tied="c"))
    with open_shards(index, shards(x=x, y=y)) as joined:
        assert list(joined.specs) == ["a", "b", "c"]
        assert dict(joined.aliases) == {"tied": "c"}
        assert joined.read("tied").tobytes() == ONE.tobytes()
        assert joined.read("b").tobytes() == TWO.tobytes()
        assert joined.spans("a") is None
        assert joined.crc32("c") == 1
        assert [problem.where for problem in joined.omissions()] == ["a", "c"]
        joined.check_unchanged()
    assert (x.checks, y.checks) == (1, 1)
    assert x.closed
    assert y.closed


@pytest.mark.parametrize(
    ("parts", "metadata", "lines"),
    [
        (({"a": ONE}, {"c": ONE}), {}, ["'b' is not in x"]),
        (({"a": ONE, "b": TWO, "d": TWO}, {"c": ONE}), {}, ["'d' in x is not in the index"]),
        (
            ({"a": ONE, "c": ONE}, {"b": TWO}),
            {},
            ["'b' is not in x", "'c' is not in y"],
        ),
        (
            ({"a": ONE, "b": TWO}, {"c": ONE, "a": ONE}),
            {},
            ["'a' is in x and in another shard too", "'a' is in y and in another shard too"],
        ),
        (
            ({"a": ONE, "b": TWO}, {"c": ONE}),
            {"total_size": BYTES - 1},
            [f"total_size is {BYTES - 1}, but the tensors have {BYTES} bytes"],
        ),
        (
            ({"a": ONE, "d": TWO}, {"c": ONE}),
            {"total_size": 1},
            ["'b' is not in x", "'d' in x is not in the index", "total_size is 1"],
        ),
        (({"a": ONE, "b": TWO, "tied": ONE}, {"c": ONE}), {"tied": "a"}, ["'tied' in x is not in the index"]),
    ],
)
def test_the_index_and_the_shards_are_held_against_each_other(
    tmp_path: Path, parts: tuple[dict[str, Any], ...], metadata: dict[str, Any], lines: list[str]
) -> None:
    x, y = Part(parts[0]), Part(parts[1])
    index = read_index(write_set(tmp_path, WEIGHTS, **metadata))
    with pytest.raises(CorruptCheckpointError, match="disagree") as caught:
        open_shards(index, shards(x=x, y=y))
    found = str(caught.value).splitlines()[1:]
    assert len(found) == len(lines)
    assert all(line in text for line, text in zip(lines, found, strict=True))
    assert x.closed
    assert y.closed


def test_missing_shards_are_all_named_and_none_is_opened(tmp_path: Path) -> None:
    index = read_index(write_set(tmp_path, {f"t{i}": f"shard{i:02d}" for i in range(30)}))
    for i in range(28):
        (tmp_path / f"shard{i:02d}").unlink()

    def opened(path: Path) -> Checkpoint:
        raise AssertionError(path)

    with pytest.raises(CorruptCheckpointError, match="28 of its 30 shards are missing") as caught:
        open_shards(index, opened)
    assert str(caught.value).splitlines()[1:] == [*(f"  shard{i:02d}" for i in range(20)), "  and 8 more"]


def test_a_shard_that_cannot_be_opened_closes_the_others(tmp_path: Path) -> None:
    x, _ = two_parts()

    def opened(path: Path) -> Checkpoint:
        if path.name == "y":
            raise CorruptCheckpointError("damaged", path=path)
        return x

    with pytest.raises(CorruptCheckpointError, match="y: damaged"):
        open_shards(read_index(write_set(tmp_path, WEIGHTS)), opened)
    assert x.closed


def test_ties_inside_a_shard_are_counted_once_or_each_time(tmp_path: Path) -> None:
    weights = {"a": "x", "tied": "x", "c": "y"}
    x = MemoryCheckpoint({"a": ONE}, aliases={"tied": "a"})
    y = MemoryCheckpoint({"c": ONE})
    for total in (48, 72):
        index = read_index(write_set(tmp_path, weights, total_size=total, third="tied"))
        with open_shards(index, shards(x=x, y=y)) as joined:
            assert dict(joined.aliases) == {"tied": "a", "third": "a"}
    with pytest.raises(CorruptCheckpointError, match="total_size is 71"):
        open_shards(read_index(write_set(tmp_path, weights, total_size=71)), shards(x=x, y=y))
    elsewhere = read_index(write_set(tmp_path, {"a": "x", "tied": "y", "c": "y"}))
    with pytest.raises(CorruptCheckpointError, match=r"'tied' is not in y\n.*'tied' in x is elsewhere"):
        open_shards(elsewhere, shards(x=x, y=y))


def test_leaves_and_metadata_of_the_shards(tmp_path: Path) -> None:
    x = MemoryCheckpoint({"a": ONE}, leaves={"step": 3}, metadata={"same": 1, "only": 2, "part": "x"})
    y = MemoryCheckpoint({"c": ONE}, leaves={"rate": 0.5}, metadata={"same": 1, "part": "y", "note": "y"})
    weights = {"a": "x", "step": "x", "c": "y"}
    with open_shards(read_index(write_set(tmp_path, weights, note="index")), shards(x=x, y=y)) as joined:
        assert dict(joined.leaves) == {"step": 3, "rate": 0.5}
        assert joined.metadata == {
            "note": "index",
            "same": 1,
            "only": 2,
            "part": "x",
            "shards": {"y": {"part": "y", "note": "y"}},
        }
    z = MemoryCheckpoint({"c": ONE}, leaves={"step": 4})
    with pytest.raises(CorruptCheckpointError, match="'step' is in x and in another shard too"):
        open_shards(read_index(write_set(tmp_path, weights)), shards(x=x, y=z))


def test_links_of_a_cache_are_followed_and_siblings_looked_up_beside_the_link(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "c0ffee"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    write_set(blobs, {"a": "x"}).rename(blobs / "0index")
    (blobs / "x").rename(blobs / "0shard")
    (snapshot / "model.index.json").symlink_to("../../blobs/0index")
    (snapshot / "x").symlink_to("../../blobs/0shard")
    index = read_index(snapshot / "model.index.json")
    seen: list[Path] = []

    def opened(path: Path) -> Checkpoint:
        seen.append(path)
        return MemoryCheckpoint({"a": ONE})

    open_shards(index, opened).close()
    assert seen == [snapshot / "x"]
    (blobs / "0shard").unlink()
    with pytest.raises(CorruptCheckpointError, match="1 of its 1 shards are missing"):
        open_shards(index, opened)


# Directories


def test_the_one_index_of_a_directory(tmp_path: Path) -> None:
    assert locate(tmp_path, ".st") is None
    (tmp_path / ".hidden.st.index.json").touch()
    (tmp_path / "folder.st").mkdir()
    (tmp_path / "gone.st").symlink_to("nowhere")
    assert locate(tmp_path, ".st") is None
    (tmp_path / "a.st").touch()
    assert locate(tmp_path, ".st") == tmp_path / "a.st"
    (tmp_path / "b.st").touch()
    with pytest.raises(UnsupportedError, match=r"several checkpoints; name one of them:\n  a\.st\n  b\.st$"):
        locate(tmp_path, ".st")
    (tmp_path / "model.st.index.json").touch()
    assert locate(tmp_path, ".st") == tmp_path / "model.st.index.json"
    (tmp_path / "model.fp16.st.index.json").touch()
    with pytest.raises(UnsupportedError, match=r"model\.fp16"):
        locate(tmp_path, ".st")


def test_a_shard_without_its_index_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.st").touch()
    assert locate(tmp_path, ".st") is None
    (tmp_path / "model.st").touch()
    assert locate(tmp_path, ".st") == tmp_path / "model.st"


def test_spans_are_those_of_the_parts(tmp_path: Path) -> None:
    ckptio.save({"a": ONE}, tmp_path / "x.ckpt")
    ckptio.save({"c": TWO}, tmp_path / "y.ckpt")
    parts = [ckptio.open(tmp_path / "x.ckpt"), ckptio.open(tmp_path / "y.ckpt")]
    with JoinedCheckpoint(parts, aliases={"d": "c"}) as joined:
        spans = joined.spans("c")
        assert spans is not None
        (span,) = spans
        assert span.file.path == tmp_path / "y.ckpt"
        assert span.file.read_at(span.offset, span.length) == TWO.tobytes()
        os.utime(tmp_path / "y.ckpt", ns=(1, 1))
        with pytest.raises(ckptio.ChangedCheckpointError):
            joined.check_unchanged()
    with pytest.raises(ValueError, match="closed"):
        joined.read("a")
