"""What is not read: refused by name, never run, and never followed by another exception or a hang."""

from __future__ import annotations

import argparse
import io
import pickle
import random
import struct
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ckptio
from ckptio import Checkpoint, CkptError, CorruptCheckpointError, UnsupportedError
from ckptio.limits import raised_limits
from golden import golden
from torch_trees import stream

Opened = Callable[..., Checkpoint]
GIB = struct.pack("<I", 1 << 30)


class Evil:
    """An object whose pickle would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_a_global_of_another_module_is_refused_and_listed(kind: str) -> None:
    path = golden(f"torch/unsafe_global_{kind}.pt")
    with pytest.raises(UnsupportedError, match=r"os\.getenv: not on the list .*at byte \d+"):
        ckptio.open(path)
    with ckptio.open(path, options={"skip_unknown": "true"}) as checkpoint:
        assert list(checkpoint) == ["w"]
        assert [(problem.where, problem.allow) for problem in checkpoint.omissions()] == [("x", "skipped")]


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nothing_in_a_pickle_is_run(zipped: bool, protocol: int, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    source = tmp_path / "evil.pt"
    tree = {"w": torch.ones(2), "x": [Evil(ran)]}
    torch.save(tree, source, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    with pytest.raises(UnsupportedError, match=r"io\.open"):
        ckptio.open(source)
    with ckptio.open(source, options={"skip_unknown": "true"}) as checkpoint:
        assert checkpoint.read("w").tolist() == [1, 1]
    assert not ran.exists()
    # The test is worth something only if the pickle is as bad as it is meant to be.
    torch.load(source, weights_only=False)["x"][0].close()
    assert ran.exists()


def test_an_object_of_a_class_is_refused_or_left_out(tmp_path: Path) -> None:
    source, target = tmp_path / "x.pt", tmp_path / "y.pt"
    torch.save({"w": torch.ones(2), "args": argparse.Namespace(lr=0.5, m=torch.zeros(1))}, source)
    with pytest.raises(UnsupportedError, match=r"argparse\.Namespace"):
        ckptio.load(source)
    with pytest.raises(ckptio.LossyConversionError, match=r"args: argparse\.Namespace.*--allow skipped"):
        ckptio.convert(source, target, source_options={"skip_unknown": "true"})
    report = ckptio.convert(source, target, source_options={"skip_unknown": "true"}, allow=["skipped"])
    assert any("argparse.Namespace" in loss for loss in report.losses)
    found = torch.load(target, weights_only=True)
    assert found["args"] == {"lr": 0.5, "m": torch.zeros(1)}


def test_a_whole_module_gives_its_tensors(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 3)
    torch.save(module, tmp_path / "x.pt")
    with pytest.raises(UnsupportedError, match="Linear"):
        ckptio.open(tmp_path / "x.pt")
    with ckptio.open(tmp_path / "x.pt", options={"skip_unknown": True}) as checkpoint:
        assert checkpoint.read("_parameters/weight").tobytes() == module.weight.detach().numpy().tobytes()


def sparse() -> torch.Tensor:
    return torch.eye(3).to_sparse()


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8)


def with_attribute() -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.tag = "x"  # type: ignore[attr-defined]
    return parameter


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (sparse, "a sparse tensor"),
        (lambda: torch.eye(3).to_sparse_csr(), "a sparse tensor"),
        (nested, "a nested tensor"),
        (quantized, "a quantized tensor"),
        (lambda: torch.ones(2, device="meta"), "a meta tensor"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), "conjugated"),
        (lambda: torch.ones(2, dtype=torch.complex32), "torch.complex32|ComplexHalfStorage"),
        (with_attribute, "with attributes"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_kinds_are_refused_by_name(
    make: Callable[[], Any], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(2), "odd": make()}, path)
    with pytest.raises(UnsupportedError, match=why):
        ckptio.open(path)
    with ckptio.open(path, options={"skip_unknown": "true"}) as checkpoint:
        assert checkpoint.read("w").tolist() == [1, 1]
        assert any(problem.where.startswith("odd") for problem in checkpoint.omissions())


@pytest.mark.parametrize("value", [torch.FloatStorage, torch.nn.Parameter, {"in": [{1, 2}, len]}])
def test_classes_and_functions_as_values_are_refused(value: Any, tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "odd": value}, tmp_path / "x.pt")
    with pytest.raises(UnsupportedError):
        ckptio.open(tmp_path / "x.pt")


@pytest.mark.parametrize("key", [1.5, (1, 2), None, True, b"x"])
def test_other_keys_are_refused_by_name(key: Any, tmp_path: Path) -> None:
    torch.save({"outer": {key: torch.ones(1)}}, tmp_path / "x.pt")
    with pytest.raises(UnsupportedError, match=f"'outer' has a key .* {type(key).__name__}"):
        ckptio.open(tmp_path / "x.pt")


def test_an_integer_and_its_text_as_keys_of_one_dict_clash(tmp_path: Path) -> None:
    torch.save({0: torch.ones(1), "0": torch.zeros(1)}, tmp_path / "x.pt")
    with pytest.raises(CorruptCheckpointError, match="two values have the name '0'"):
        ckptio.open(tmp_path / "x.pt")


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_program_is_named(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), str(tmp_path / "x.pt"))
    with pytest.raises(UnsupportedError, match=r"TorchScript.*state_dict"):
        ckptio.open(tmp_path / "x.pt")


def test_a_tar_of_before_0_1_10_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.pt", "w") as archive:
        for name in ("storages", "tensors", "pickle"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(UnsupportedError, match=r"tar archive.*0\.1\.10"):
        ckptio.open(tmp_path / "x.pt")


def test_two_archives_in_one_file_are_refused(opened: Opened) -> None:
    data = golden("torch/tied_zip.pt").read_bytes()
    with pytest.raises(CkptError, match="something was put before the archive, another one perhaps"):
        opened(data + data)
    with pytest.raises(CkptError):
        opened(b"x" * 64 + data)


def test_an_encrypted_entry_is_refused(opened: Opened) -> None:
    data = bytearray(golden("torch/tied_zip.pt").read_bytes())
    for magic, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(magic) + at] |= 1
    with pytest.raises(UnsupportedError, match="encrypted"):
        opened(bytes(data))


def entry(body: bytes) -> bytes:
    return b"\x80\x02}X\x01\0\0\0a" + body + b"s."


def tensor(shape: bytes, strides: bytes, offset: bytes = b"K\0") -> bytes:
    """Return the pickle of a tensor over a storage of two f32 with the key k."""
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0kX\x03\0\0\0cpuK\x02NtQ"
    return b"ctorch._utils\n_rebuild_tensor\n(" + storage + offset + shape + strides + b"tR"


BIG = b"\x8a\x06" + (1 << 40).to_bytes(6, "little")
HOSTILE = {
    "a string of a gigabyte": entry(b"X" + GIB),
    "bytes of 2^60": entry(b"\x8e" + struct.pack("<Q", 1 << 60)),
    "a bytearray of 2^60": entry(b"\x96" + struct.pack("<Q", 1 << 60)),
    "a long of 2 GiB": entry(b"\x8b" + GIB),
    "a memo index of 2^32": entry(b"N" + b"r\xff\xff\xff\xff"),
    "a memo entry that is not there": entry(b"h\x07"),
    "an empty stack": b"\x80\x020.",
    "no mark": b"\x80\x02t.",
    "two values": b"\x80\x02NN.",
    "an open mark": b"\x80\x02(N.",
    "no end": b"\x80\x02",
    "an extension": entry(b"\x82\x01"),
    "a buffer from outside": entry(b"\x97"),
    "a persistent id as text": entry(b"Pxx\n"),
    "a class instance of old": entry(b"(ios\nsystem\n"),
    "a name without end": entry(b"cxx" + b"y" * 5000),
    "a call of a number": entry(b"K\x01)R"),
    "an append to a number": entry(b"K\x01K\x02a"),
    "an item of a list": entry(b"]K\x01K\x02s"),
    "an odd number of items": entry(b"}(K\x01u"),
    "attributes of a list": entry(b"]}b"),
    "not UTF-8": entry(b"X\x01\0\0\0\xff"),
    "a list in itself": entry(b"]q\x00h\x00a"),
    "a map in itself": entry(b"}q\x00X\x01\0\0\0bh\x00s"),
    "lists 10^4 deep": entry(b"]" * 10_000 + b"a" * 9_999),
    "tuples 10^4 deep": entry(b")" + b"\x85" * 10_000),
    "maps 10^4 deep": entry(b"}X\x01\0\0\0b" * 10_000 + b"N" + b"s" * 10_000),
    "tensors of subclasses 10^4 deep": entry(
        b"ctorch._tensor\n_rebuild_from_type_v2\nq\x00" + b"(h\x00NNt" * 10_000 + b"R" * 10_000
    ),
    "lists that double 40 times": entry(
        b"]q\x00" + b"".join(b"]q%c(h%ch%ce" % (i + 1, i, i) for i in range(40))
    ),
    "maps that double 40 times": entry(
        b"}q\x00" + b"".join(b"}q%c(X\1\0\0\0xh%cX\1\0\0\0yh%cu" % (i + 1, i, i) for i in range(40))
    ),
    "bytes made again and again": entry(
        b"c_codecs\nencode\nq\0X\0\0\1\0" + b"x" * 65536 + b"X\6\0\0\0latin1\x86q\1" + b"h\0h\1R" * 2000
    ),
    "an OrderedDict made again and again": entry(
        b"ccollections\nOrderedDict\nq\0](" + b"NN\x86" * 4000 + b"e\x85q\1" + b"h\0h\1R" * 4000
    ),
    "attributes set again and again": entry(b"cx\ny\n)R}(" + b"NN" * 20_000 + b"uq\1b" + b"h\1b" * 4000),
    "a shape beyond any array": entry(tensor(BIG + BIG + b"\x86", b"K\0K\0\x86")),
    "a shape that unfolds two elements to 2^42 bytes": entry(tensor(BIG + b"\x85", b"K\0\x85")),
    "a view that reaches out of its storage": entry(tensor(b"K\x02\x85", b"K\x02\x85")),
    "an offset out of its storage": entry(tensor(b"K\x02\x85", b"K\x01\x85", b"K\x01")),
    "a negative offset": entry(tensor(b"K\x02\x85", b"K\x01\x85", b"J\xff\xff\xff\xff")),
    "a negative stride": entry(tensor(b"K\x02\x85", b"J\xff\xff\xff\xff\x85")),
    "65 dimensions": entry(tensor(b"(" + b"K\x01" * 65 + b"t", b"(" + b"K\x01" * 65 + b"t")),
    "sizes without strides": entry(tensor(b"K\x02\x85", b")")),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_pickle_is_an_error_at_once(what: str, opened: Opened) -> None:
    data = stream(HOSTILE[what], {"k": bytes(8)} if b"storage" in HOSTILE[what] else {})
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(CorruptCheckpointError):
            opened(data)
        # Tracing makes this some ten times slower than it is.
        assert time.process_time() - began < 6
        assert tracemalloc.get_traced_memory()[1] < (50 << 20) + 20 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("filling", [b"}", b"(", b"\x8f"])
def test_memory_is_in_proportion_to_the_file(filling: bytes, opened: Opened) -> None:
    data = stream(b"\x80\x04" + filling * 1_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(CkptError):
            opened(data)
        assert tracemalloc.get_traced_memory()[1] < (50 << 20) + 20 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([b"\x80\x02K\x01."], "magic number"),
        ([pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(1002, 2)], "version 1002"),
        ([pickle.dumps(0x1950A86A20F9469CFC6C, 2), pickle.dumps(1001, 2), pickle.dumps(3, 2)], "machine"),
    ],
)
def test_streams_of_other_programs_are_refused(parts: list[bytes], why: str, opened: Opened) -> None:
    with pytest.raises(CkptError, match=why):
        opened(b"".join(parts))


@pytest.mark.parametrize(
    ("storages", "more", "why"),
    [
        ({}, b"", "'k' is not in the file"),
        ({"k": bytes(4)}, b"", "of 4 bytes here, of 8 in the pickle"),
        ({"k": bytes(8), "other": b""}, b"", "'other' is of no type"),
        ({"k": bytes(8)}, b"x", "1 bytes after the last storage"),
    ],
)
def test_storages_that_do_not_fit_are_refused(
    storages: dict[str, bytes], more: bytes, why: str, opened: Opened
) -> None:
    with pytest.raises(CorruptCheckpointError, match=why):
        opened(stream(entry(tensor(b"K\x02\x85", b"K\x01\x85")), storages) + more)


def test_the_limits_of_tensors_and_header_are_kept(tmp_path: Path) -> None:
    torch.save({f"{index}": torch.ones(1) for index in range(11)}, tmp_path / "x.pt")
    with raised_limits(tensors=10), pytest.raises(CorruptCheckpointError, match="more than 10 tensors"):
        ckptio.open(tmp_path / "x.pt")
    with raised_limits(header_bytes=100), pytest.raises(CorruptCheckpointError, match="100"):
        ckptio.open(tmp_path / "x.pt")


def test_an_index_that_leads_out_of_its_directory_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "x.bin")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "../x.bin"}, "metadata": {}}')
    with pytest.raises(CorruptCheckpointError, match=r"\.\./x\.bin"):
        ckptio.open(folder)


def test_2000_flips_in_pickles_end_in_an_error_or_a_reading(opened: Opened, tmp_path: Path) -> None:
    chance = random.Random(3)
    data = golden("torch/tied_legacy.pt").read_bytes()
    end = data.index(b"u.\x80\x02]") + 2
    outcomes = {"read": 0, "refused": 0}
    path = tmp_path / "x.pt"
    for number in range(2000):
        damaged = bytearray(data)
        for _ in range(1 + number % 3):
            damaged[chance.randrange(end)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        skip = {"skip_unknown": number % 2 == 0}
        try:
            with ckptio.open(path, checkpoint_format="torch", options=skip) as checkpoint:
                for spec in checkpoint.specs.values():
                    assert checkpoint.read(spec.name).nbytes == spec.nbytes
            outcomes["read"] += 1
        except CkptError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100


def test_a_zip_whose_pickle_is_not_torchs_is_not_taken_for_one(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ckptio.UndetectedFormatError):
        ckptio.open(tmp_path / "x.zip")
    with pytest.raises(CorruptCheckpointError, match=r"<folder>/data\.pkl"):
        ckptio.open(tmp_path / "x.zip", checkpoint_format="torch")
