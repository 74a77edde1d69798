"""`ckptio.torch`: tensors of torch in and out of every format, ties by storage kept as ties."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import ckptio
import ckptio.torch
from ckptio import DType, OptionError, UnsupportedError

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32),
    *(torch.uint64, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e4m3fnuz),
    *(torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]


def bits(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return every kind of bits as ``count`` elements, NaN payloads among them."""
    data = torch.arange(1, 1 + count * dtype.itemsize, dtype=torch.uint8)
    return data.fmod(2).bool() if dtype == torch.bool else data.mul(37).view(dtype)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.mark.parametrize("name", ["msgpack", "npz", "safetensors", "statedict", "torch"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_go_in_and_out_of_a_format(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    (entry,) = entry_points(group="ckptio.formats.v1", name=name)
    capabilities = entry.load().ckptio_format().capabilities
    path = tmp_path / "x"
    tensors = {"m": bits(dtype, 6).reshape(2, 3), "none": torch.empty((0, 2), dtype=dtype)}
    tensors["zero"] = tensors["m"][1, 1]
    if DType.parse(str(dtype).removeprefix("torch.")) not in capabilities.dtypes:
        with pytest.raises(UnsupportedError):
            ckptio.torch.save(tensors, path, checkpoint_format=name)
        return
    ckptio.torch.save(tensors, path, checkpoint_format=name)
    found = ckptio.torch.load(path, checkpoint_format=name)
    assert set(found) == set(tensors)
    for each, tensor in tensors.items():
        assert (found[each].dtype, found[each].shape) == (tensor.dtype, tensor.shape)
        assert raw(found[each]) == raw(tensor)


def test_ties_of_a_module_are_ties_in_the_file_and_again_in_memory(tmp_path: Path) -> None:
    module = torch.nn.Module()
    module.wte = torch.nn.Embedding(5, 3)
    module.head = torch.nn.Linear(3, 5, bias=False)
    module.head.weight = module.wte.weight
    module.register_buffer("copy", module.wte.weight.detach().clone())
    for target in ("x.pt", "x.safetensors", "x.ckpt"):
        ckptio.torch.save(module, tmp_path / target)
        with ckptio.open(tmp_path / target) as checkpoint:
            assert sorted(checkpoint) == ["copy", "head.weight", "wte.weight"]
            assert len(checkpoint.aliases) == 1
        found = ckptio.torch.load(tmp_path / target)
        assert found["wte.weight"].data_ptr() == found["head.weight"].data_ptr() != found["copy"].data_ptr()
        module.load_state_dict(found)


def test_only_the_same_view_of_one_storage_is_a_tie() -> None:
    base = torch.arange(6.0)
    state = {
        "base": base,
        "same": base[:],
        "part": base[:3],
        "shifted": base[3:],
        "strided": base[::2],
        "shaped": base.reshape(2, 3),
        "bits": base.view(torch.int32),
        "copy": base.clone(),
        "empty": base[:0],
        "nothing": base[:0],
    }
    assert dict(ckptio.torch.StateDict(state).aliases) == {"same": "base"}
    value = torch.tensor([1 + 2j])
    assert dict(ckptio.torch.StateDict({"a": value, "b": value.conj()}).aliases) == {}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12.0)[::2],
        torch.arange(3.0).expand(4, 3),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
    ],
)
def test_views_are_saved_as_what_they_show(tensor: torch.Tensor, tmp_path: Path) -> None:
    ckptio.torch.save({"t": tensor}, tmp_path / "x.pt")
    assert torch.equal(ckptio.torch.load(tmp_path / "x.pt")["t"], tensor.detach())


def test_contiguous_tensors_are_not_copied() -> None:
    tensor = torch.arange(1 << 10, dtype=torch.int32)
    (chunk,) = ckptio.torch.StateDict({"t": tensor}).chunks("t")
    assert np.frombuffer(chunk, np.uint8).__array_interface__["data"][0] == tensor.data_ptr()
    assert [len(each) for each in ckptio.torch.StateDict({"t": tensor}).chunks("t", 1025)] == [1024] * 4


def test_a_loaded_tensor_is_of_its_own_memory(tmp_path: Path) -> None:
    ckptio.torch.save({"t": torch.zeros(3)}, tmp_path / "x.pt")
    found = ckptio.torch.load(tmp_path / "x.pt")["t"]
    found += 1
    assert ckptio.torch.load(tmp_path / "x.pt")["t"].tolist() == [0, 0, 0]


def test_the_device_is_the_one_asked_for(tmp_path: Path) -> None:
    ckptio.torch.save({"t": torch.zeros(3), "e": torch.zeros(0)}, tmp_path / "x.pt")
    assert {each.device.type for each in ckptio.torch.load(tmp_path / "x.pt", "meta").values()} == {"meta"}


def test_plain_values_and_metadata_are_kept(tmp_path: Path) -> None:
    state = {"w": torch.ones(1), "step": 3, "betas": (0.9, 0.99)}
    ckptio.torch.save(state, tmp_path / "x.pt", metadata={"config": {"n_head": 2}})
    with ckptio.open(tmp_path / "x.pt") as checkpoint:
        assert checkpoint.leaves == {"step": 3, "betas": [0.9, 0.99]}
        assert checkpoint.metadata["config"] == {"n_head": 2}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({1: torch.ones(1)}, "must be a str"),
        ({"a": {"b": torch.ones(1)}}, "a: a map that is not empty"),
        ({"a": object()}, "a: object"),
        ({"a": torch.eye(2).to_sparse()}, "a: only dense tensors"),
        ({"a": torch.ones(1, device="meta")}, "a: a meta tensor"),
        ({"a": torch.empty(1, dtype=torch.bits8)}, r"a: torch\.bits8"),
    ],
)
def test_what_cannot_be_saved_is_named(state: Mapping[Any, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=why):
        ckptio.torch.save(state, tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


def test_a_dtype_that_torch_lacks_is_named(tmp_path: Path) -> None:
    ckptio.save({"a": np.zeros(2, ml_dtypes.float8_e3m4)}, tmp_path / "x.msgpack")
    with pytest.raises(UnsupportedError, match=r"a \(f8_e3m4\)"):
        ckptio.torch.load(tmp_path / "x.msgpack")


def test_without_torch_the_remedy_is_named_and_its_files_are_read(tmp_path: Path) -> None:
    ckptio.torch.save({"w": torch.ones(2)}, tmp_path / "x.pt")
    program = f"""
import sys
sys.modules["torch"] = None
import ckptio
assert ckptio.load({str(tmp_path / "x.pt")!r})["w"].tolist() == [1, 1]
ckptio.convert({str(tmp_path / "x.pt")!r}, {str(tmp_path / "y.pt")!r})
import ckptio.torch
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1] == "ImportError: ckptio.torch needs torch: pip install 'ckptio[torch]'"
    )
    assert torch.load(tmp_path / "y.pt", weights_only=True)["w"].tolist() == [1, 1]
