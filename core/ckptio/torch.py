"""Checkpoints in and out of torch: ``ckptio.torch.load`` and ``ckptio.torch.save``, in every format.

This is the only module of ckptio that imports torch; reading and writing torch's own files does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ckptio.checkpoint import CHUNK_BYTES, Checkpoint, TensorSpec
from ckptio.conversion import save_checkpoint
from ckptio.described import DescribedCheckpoint
from ckptio.dtypes import DType
from ckptio.errors import OptionError, UnsupportedError
from ckptio.leaves import leaf_problem
from ckptio.reading import open as open_checkpoint
from ckptio.report import ConversionReport

if TYPE_CHECKING:
    import torch
else:
    try:
        import torch
    except ImportError as error:
        raise ImportError("ckptio.torch needs torch: pip install 'ckptio[torch]'") from error

__all__ = ["StateDict", "load", "read", "save"]


def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    *,
    checkpoint_format: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """Return all tensors of a checkpoint of any format, on ``device``, by name.

    Names that are tied are one tensor. Each tensor goes to the device before the next is read. Raises
    as `ckptio.open` does, and `UnsupportedError` for a tensor whose dtype torch does not have.
    """
    with open_checkpoint(path, checkpoint_format=checkpoint_format, options=options) as checkpoint:
        lacking = [spec.name for spec in checkpoint.specs.values() if spec.dtype not in _DTYPES]
        if lacking:
            kinds = ", ".join(f"{name} ({checkpoint.specs[name].dtype.value})" for name in lacking[:20])
            raise UnsupportedError(f"{path}: torch has no dtype for {len(lacking)} tensors: {kinds}")
        tensors = {name: read(checkpoint, name).to(device) for name in checkpoint.specs}
        return {name: tensors[checkpoint.canonical(name)] for name in checkpoint.names()}


def save(
    tensors: torch.nn.Module | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    checkpoint_format: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> ConversionReport:
    """Save a module's state dict, or tensors and plain values by name; all of it is published, or nothing.

    Names whose tensors are one view of one storage are ties. Tensors on another device are brought to
    the processor one at a time, and their bytes are not copied when they are contiguous there. Raises
    as `ckptio.save` does.
    """
    state = tensors.state_dict() if isinstance(tensors, torch.nn.Module) else tensors
    checkpoint = StateDict(state, metadata=metadata)
    return save_checkpoint(
        checkpoint, path, checkpoint_format=checkpoint_format, options=options, overwrite=overwrite
    )


class StateDict(DescribedCheckpoint):
    """A checkpoint over tensors of torch, on any device and in any strides; nothing is copied at once.

    Raises `OptionError` for what is neither a dense tensor of a known dtype nor a plain value.
    """

    def __init__(self, state: Mapping[str, Any], *, metadata: Mapping[str, Any] | None = None) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        aliases: dict[str, str] = {}
        leaves: dict[str, Any] = {}
        seen: dict[tuple[Any, ...], str] = {}
        for name, value in state.items():
            if not isinstance(name, str):
                raise OptionError(f"{name!r}: the name of a tensor must be a str")
            if not isinstance(value, torch.Tensor):
                problem = leaf_problem(value)
                if problem:
                    raise OptionError(f"{name}: {problem}")
                leaves[name] = value
                continue
            tensor = _checked(name, value)
            same = seen.setdefault(_identity(tensor), name) if tensor.numel() else name
            if same == name:
                self._tensors[name] = tensor
            else:
                aliases[name] = same
        specs = {
            name: TensorSpec(name, _OF_TORCH[each.dtype], tuple(each.shape))
            for name, each in self._tensors.items()
        }
        super().__init__(specs, aliases=aliases, leaves=leaves, metadata=dict(metadata or {}))

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        spec = self._specs[name]
        step = max(1, max_bytes // spec.dtype.itemsize) * spec.dtype.itemsize
        data = _bytes(self._tensors[name]) if spec.size else memoryview(b"")
        for start in range(0, len(data), step):
            yield data[start : start + step]


_DTYPES: dict[DType, torch.dtype] = {
    dtype: getattr(torch, dtype.long_name) for dtype in DType if hasattr(torch, dtype.long_name)
}
_OF_TORCH = {theirs: ours for ours, theirs in _DTYPES.items()}


def read(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """Return one tensor (or alias) of an open checkpoint; `UnsupportedError` where torch lacks its dtype."""
    spec = checkpoint.specs[checkpoint.canonical(name)]
    if spec.dtype not in _DTYPES:
        raise UnsupportedError(f"torch has no dtype for {name} ({spec.dtype.value})")
    array = checkpoint.read(name)
    if not array.size:
        return torch.empty(spec.shape, dtype=_DTYPES[spec.dtype])
    flat = torch.from_numpy(array.reshape(-1).view(np.uint8))
    return flat.view(_DTYPES[spec.dtype]).reshape(spec.shape)


def _checked(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _OF_TORCH:
        raise OptionError(f"{name}: {tensor.dtype} cannot be stored in a checkpoint")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise OptionError(f"{name}: only dense tensors are stored, not {tensor.layout}")
    if tensor.device.type == "meta":
        raise OptionError(f"{name}: a meta tensor has no data")
    return tensor.detach()


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what two tensors have in common that are one view of one storage."""
    # Conjugate and negative views are their base with other values.
    lazy = tensor.is_conj(), tensor.is_neg()
    place = tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return (*place, tensor.dtype, tuple(tensor.shape), tensor.stride(), *lazy)


def _bytes(tensor: torch.Tensor) -> memoryview:
    there = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    return there.reshape(-1).view(torch.uint8).numpy().data
