"""Writing shards: the plan of Hugging Face, and an old set that is whole until the new one counts."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import ckptio
from ckptio import Checkpoint, DType, MemoryCheckpoint, Output, TensorSpec
from ckptio.dtypes import DType as Kind
from ckptio.output import OutputFile
from ckptio.sharding import parse_size, plan_shards, write_shards
from ckptio.shards import JoinedCheckpoint, open_shards, read_index
from ckptio.weights import locate
from crashing import CrashError, Watch
from golden import all_golden, golden_id

# The size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5_000_000_000),
        ("500MB", 500_000_000),
        ("1GiB", 1 << 30),
        ("2kib", 2048),
        ("20kb", 20_000),
        ("1TB", 10**12),
        ("1 TiB", 1 << 40),
        ("123", 123),
        (" 7B ", 7),
        ("1.5MB", 1_500_000),
        ("0.1GB", 100_000_000),
        ("999999999999999999", 999_999_999_999_999_999),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1e9", "5XB", "5 GB GB", "0", "0.1", "1,5GB", "٣", "9" * 19]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size|at least one byte"):
        parse_size(text)


# The plan


def sized(**sizes: int) -> list[TensorSpec]:
    return [TensorSpec(name, DType.U8, (size,)) for name, size in sizes.items()]


@pytest.mark.parametrize(
    ("specs", "plan"),
    [
        ([], []),
        (sized(a=1), [["a"]]),
        (sized(a=5, b=5, c=1), [["a", "b"], ["c"]]),
        (sized(a=6, b=5, c=5), [["a"], ["b", "c"]]),
        (sized(a=1, big=11, b=1), [["big"], ["a", "b"]]),
        (sized(a=10, empty=0, b=1), [["a", "empty"], ["b"]]),
        (sized(big=11, bigger=12), [["big"], ["bigger"]]),
    ],
)
def test_the_plan_is_greedy_and_in_order(specs: list[TensorSpec], plan: list[list[str]]) -> None:
    assert plan_shards(specs, 10) == plan


@pytest.mark.parametrize("path", all_golden("hf/*_sharded/*.index.json"), ids=golden_id)
def test_the_plan_is_that_of_transformers(path: Path) -> None:
    truth = json.loads(Path(f"{path.parent}.truth.json").read_text())
    weight_map = json.loads(path.read_text())["weight_map"]
    specs = [
        TensorSpec(name, Kind.parse(leaf["dtype"]), tuple(leaf["shape"]))
        for name, leaf in truth["leaves"].items()
        if name in weight_map
    ]
    expected = defaultdict(set)
    for name, file in weight_map.items():
        expected[file].add(name)
    plan = plan_shards(specs, parse_size(truth["max_shard_size"]))
    assert [set(names) for names in plan] == [expected[file] for file in sorted(expected)]


# Writing. A shard of these tests is a JSON file of the values.


def write_shard(checkpoint: Checkpoint, file: OutputFile, notes: Mapping[str, str]) -> None:
    tensors = {name: checkpoint.read(name).tolist() for name in checkpoint.specs}
    file.write(json.dumps([tensors, notes]).encode())


def open_shard(path: Path) -> Checkpoint:
    tensors, notes = json.loads(path.read_text())
    return MemoryCheckpoint({k: np.array(v, "<i8") for k, v in tensors.items()}, metadata=notes)


def model(value: int, count: int = 3) -> MemoryCheckpoint:
    arrays = {f"t{i}": np.full(4, value, "<i8") for i in range(count)}
    return MemoryCheckpoint(arrays)


def write(folder: Path, value: int, *, count: int = 3, each: int = 1, overwrite: bool = False) -> None:
    with Output(folder, overwrite=overwrite) as out:
        notes = {"value": str(value)}
        write_shards(model(value, count), out, each * 32, notes, suffix=".st", write_shard=write_shard)
        out.finish()
        out.publish()


def read(folder: Path) -> tuple[int, int]:
    """Return the one value of all tensors of the checkpoint in ``folder``, and how many there are."""
    found = locate(folder, ".st")
    assert found is not None
    index = found.name.endswith(".index.json")
    checkpoint = open_shards(read_index(found), open_shard) if index else open_shard(found)
    with checkpoint:
        values = {int(v) for name in checkpoint.specs for v in checkpoint.read(name)}
        (value,) = values
        assert checkpoint.metadata == {"value": str(value)}
        assert isinstance(checkpoint, JoinedCheckpoint) == index
        return value, len(checkpoint.specs)


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


THREE = [
    "model-00001-of-00003.st",
    "model-00002-of-00003.st",
    "model-00003-of-00003.st",
    "model.st.index.json",
]
THREE_V2 = [
    "model-v2-00001-of-00003.st",
    "model-v2-00002-of-00003.st",
    "model-v2-00003-of-00003.st",
    "model.st.index.json",
]


def test_a_new_directory(tmp_path: Path) -> None:
    write(tmp_path / "d", 1)
    assert listing(tmp_path) == ["d"]
    assert listing(tmp_path / "d") == THREE
    assert json.loads((tmp_path / "d" / "model.st.index.json").read_text()) == {
        "metadata": {"total_size": 96, "value": "1"},
        "weight_map": {f"t{i}": THREE[i] for i in range(3)},
    }
    assert json.loads((tmp_path / "d" / THREE[1]).read_text()) == [{"t1": [1, 1, 1, 1]}, {}]
    assert read(tmp_path / "d") == (1, 3)


def test_what_fits_into_one_shard_is_one_file_without_an_index(tmp_path: Path) -> None:
    write(tmp_path / "d", 1, each=3)
    assert listing(tmp_path / "d") == ["model.st"]
    assert read(tmp_path / "d") == (1, 3)
    write(tmp_path / "empty", 1, count=0)
    assert listing(tmp_path / "empty") == ["model.st"]


def test_the_name_of_a_file_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ckptio.OptionError, match="shards make a directory; name one, without .st"):
        write(tmp_path / "model.st", 1)
    (tmp_path / "d").write_text("file")
    with pytest.raises(NotADirectoryError, match="is a file"):
        write(tmp_path / "d", 1, overwrite=True)
    assert (tmp_path / "d").read_text() == "file"
    assert listing(tmp_path) == ["d"]


def test_ties_of_a_selection_stay_out_of_the_shards(tmp_path: Path) -> None:
    base = MemoryCheckpoint({"a": np.arange(4), "b": np.arange(4)}, aliases={"tied": "a"})
    with Output(tmp_path / "d") as out:
        write_shards(base, out, 32, {"tied": "a"}, suffix=".st", write_shard=write_shard)
        out.finish()
        out.publish()
    index = read_index(tmp_path / "d" / "model.st.index.json")
    assert list(index.weight_map) == ["a", "b"]
    assert index.aliases == {"tied": "a"}


def test_one_shard_at_a_time_is_open(tmp_path: Path) -> None:
    counts = []

    def counting(checkpoint: Checkpoint, file: OutputFile, notes: Mapping[str, str]) -> None:
        counts.append(len(os.listdir("/proc/self/fd")))
        write_shard(checkpoint, file, notes)

    with Output(tmp_path / "d") as out:
        write_shards(model(1, 20), out, 32, {}, suffix=".st", write_shard=counting)
        out.finish()
    assert len(counts) == 20
    assert len(set(counts)) == 1


# Into a directory that exists


def test_only_the_old_set_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write(folder, 1)
    (folder / "config.json").write_text("mine")
    (folder / "sub").mkdir()
    write(folder, 2, overwrite=True)
    assert listing(folder) == ["config.json", *THREE_V2, "sub"]
    assert read(folder) == (2, 3)
    write(folder, 3, each=2, overwrite=True)
    assert [n for n in listing(folder) if n.endswith(".st")] == [
        "model-00001-of-00002.st",
        "model-00002-of-00002.st",
    ]
    assert read(folder) == (3, 3)
    assert (folder / "config.json").read_text() == "mine"
    assert listing(tmp_path) == ["d"]


def test_one_file_and_shards_take_each_others_place(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write(folder, 1, each=3)
    write(folder, 2, each=3, overwrite=True)
    assert (listing(folder), read(folder)) == (["model.st"], (2, 3))
    write(folder, 3, overwrite=True)
    assert (listing(folder), read(folder)) == (THREE, (3, 3))
    write(folder, 4, each=3, overwrite=True)
    assert (listing(folder), read(folder)) == (["model.st"], (4, 3))


def test_a_set_of_another_name_keeps_it(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write(folder, 1)
    (folder / "model.st.index.json").rename(folder / "model.fp16.st.index.json")
    write(folder, 2, overwrite=True)
    assert listing(folder) == [f"model.fp16-0000{i}-of-00003.st" for i in (1, 2, 3)] + [
        "model.fp16.st.index.json"
    ]
    assert read(folder) == (2, 3)


def test_shards_that_no_index_names_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write(folder, 1)
    (folder / "model.st.index.json").write_text("damaged")
    write(folder, 2, overwrite=True)
    assert listing(folder) == sorted([*THREE[:3], *THREE_V2])
    assert read(folder) == (2, 3)
    # What an index calls a shard but has another suffix is not removed either.
    index = json.loads((folder / "model.st.index.json").read_text())
    index["weight_map"]["mine"] = "config.json"
    (folder / "config.json").write_text("mine")
    (folder / "model.st.index.json").write_text(json.dumps(index))
    write(folder, 3, each=2, overwrite=True)
    assert (folder / "config.json").read_text() == "mine"


def test_a_directory_of_several_checkpoints_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "a.st").write_text("a")
    (tmp_path / "b.st").write_text("b")
    with pytest.raises(ckptio.UnsupportedError, match="several checkpoints"):
        write(tmp_path, 1, overwrite=True)
    assert listing(tmp_path) == ["a.st", "b.st"]


def test_a_file_in_the_way_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    write(tmp_path / "d", 1)
    (tmp_path / "d" / "model.st").write_text("mine")
    with pytest.raises(FileExistsError, match=r"model\.st is in the way"):
        write(tmp_path / "d", 2, each=3, overwrite=True)
    assert (tmp_path / "d" / "model.st").read_text() == "mine"
    assert read(tmp_path / "d") == (1, 3)


# The order of the calls, and a crash in each of them


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def test_shards_first_then_the_index_then_the_old_set_goes(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path / "d", 1)
    watch.calls.clear()
    write(tmp_path / "d", 2, overwrite=True)
    assert watch.calls == [
        *(("fsync", name) for name in THREE_V2),
        ("fsync", "staging"),
        *(("link", name) for name in THREE_V2[:3]),
        ("fsync", "d"),
        ("exchange", "model.st.index.json"),
        ("fsync", "d"),
        *(("rename", name) for name in THREE[:3]),
        ("fsync", "d"),
    ]


def test_one_file_in_place_of_shards_counts_when_the_index_goes(tmp_path: Path, watch: Watch) -> None:
    write(tmp_path / "d", 1)
    watch.calls.clear()
    write(tmp_path / "d", 2, each=3, overwrite=True)
    assert watch.calls == [
        ("fsync", "model.st"),
        ("fsync", "staging"),
        ("fsync", "d"),
        ("link", "model.st"),
        ("fsync", "d"),
        ("rename", "model.st.index.json"),
        *(("rename", name) for name in THREE[:3]),
        ("fsync", "d"),
    ]


def crashes(tmp_path: Path, watch: Watch, old: int, new: int) -> Iterator[tuple[list[str], int]]:
    """Overwrite a set with a crash at every step; yield what is there then, and the value that is read."""
    steps = None
    number = 0
    while steps is None or number < steps:
        for when in ("before", "after"):
            folder = tmp_path / f"{number}{when}"
            watch.crash = None
            write(folder, 1, each=old)
            (folder / "config.json").write_text("mine")
            watch.calls.clear()
            watch.crash = (number, when)
            with pytest.raises(CrashError):
                write(folder, 2, each=new, overwrite=True)
            watch.crash = None
            assert (folder / "config.json").read_text() == "mine"
            yield [name for name in listing(folder) if name != "config.json"], read(folder)[0]
        if steps is None:
            clean = tmp_path / "clean"
            write(clean, 1, each=old)
            watch.calls.clear()
            write(clean, 2, each=new, overwrite=True)
            steps = len(watch.calls)
        number += 1


def test_a_crash_at_any_step_leaves_the_old_set_or_the_new_one(tmp_path: Path, watch: Watch) -> None:
    seen = list(crashes(tmp_path, watch, old=1, new=1))
    values = [value for _, value in seen]
    assert values == sorted(values)
    assert set(values) == {1, 2}
    for names, value in seen:
        assert names == (THREE if value == 1 else THREE_V2)


@pytest.mark.parametrize(("old", "new"), [(3, 1), (1, 3), (3, 3), (1, 2)])
def test_a_crash_between_one_file_and_shards(tmp_path: Path, watch: Watch, old: int, new: int) -> None:
    values = [value for _, value in crashes(tmp_path, watch, old, new)]
    assert values == sorted(values)
    assert set(values) == {1, 2}


def test_of_two_writers_one_publishes(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write(folder, 1)
    with Output(folder, overwrite=True) as first, Output(folder, overwrite=True) as second:
        for out, value in ((first, 2), (second, 3)):
            write_shards(model(value), out, 32, {"value": str(value)}, suffix=".st", write_shard=write_shard)
            out.finish()
        first.publish()
        with pytest.raises(FileExistsError, match="appeared meanwhile"):
            second.publish()
    assert listing(folder) == THREE_V2
    assert read(folder) == (2, 3)


def test_subdirectories_are_moved_whole(tmp_path: Path) -> None:
    (tmp_path / "d" / "taken").mkdir(parents=True)
    with Output(tmp_path / "d", overwrite=True) as out:
        out.create("new/a").write(b"a")
        out.create("index").write(b"i")
        out.create("new/b").write(b"b")
        with pytest.raises(FileExistsError, match="taken is in the way"):
            out.create("taken/a")
        out.finish()
        out.publish()
    found = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"d/new/a": "a", "d/index": "i", "d/new/b": "b"}
    with (
        Output(tmp_path / "d", overwrite=True) as out,
        pytest.raises(IsADirectoryError, match="name a file in it"),
    ):
        out.create()
    assert listing(tmp_path / "d") == ["index", "new", "taken"]
