"""Formats that keep every promise of the kit; faulty ones replace one part of them.

The file of each: its name and a line feed, the length of a header, the header in JSON, the tensors.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ckptio
from ckptio import (
    Capabilities,
    Checkpoint,
    Confidence,
    Cursor,
    DType,
    FileCheckpoint,
    Format,
    Match,
    Output,
    Probe,
    SourceFile,
    TensorSpec,
)
from ckptio.jsontext import parse_object
from ckptio.leaves import decode_leaf, encode_leaf
from ckptio.limits import shape_problem

__all__ = ["LENGTH", "Modest", "ReadOnly", "Sound"]

LENGTH = struct.Struct("<Q")
DTYPES = {dtype.value: dtype for dtype in DType}


class Sound(Format):
    """A format that keeps every promise, in parts that the faulty ones replace."""

    name = "sound"
    summary = "a sound format"
    capabilities = Capabilities(
        dtypes=frozenset({DType.BF16, DType.F32, DType.BOOL}), aliases=True, leaves=True, metadata=True
    )
    reader: type[FileCheckpoint] = FileCheckpoint

    def match(self, probe: Probe) -> Match:
        mine = probe.head.startswith(self.first_line())
        return Match(Confidence.SURE if mine else Confidence.NO, "the first line")

    def open(self, path: Path, options: Mapping[str, Any]) -> Checkpoint:
        with ckptio.open_source(path) as file:
            return self.parse(file)

    def parse(self, file: SourceFile) -> Checkpoint:
        cursor = Cursor(file)
        if cursor.take(len(self.first_line()), "the first line") != self.first_line():
            raise cursor.error("another format", 0)
        (length,) = cursor.unpack(LENGTH, "the length")
        header = self.parse_header(cursor.take(length, "the header"), file.path)
        try:
            specs = {name: _spec(name, *entry) for name, entry in header["tensors"].items()}
            leaves = {path: decode_leaf(leaf) for path, leaf in header["leaves"].items()}
            aliases, metadata = dict(header["aliases"]), dict(header["metadata"])
            if not set(aliases.values()) <= set(specs):
                raise ValueError("a tie leads nowhere")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise cursor.error(f"bad header: {error}") from None
        offsets = {}
        for name, spec in specs.items():
            offsets[name] = cursor.offset
            self.skip(cursor, spec)
        if cursor.left:
            raise cursor.error("more bytes than tensors")
        return self.reader(file, specs, offsets, aliases=aliases, leaves=leaves, metadata=metadata)

    def write(self, checkpoint: Checkpoint, out: Output, options: Mapping[str, Any]) -> None:
        text = json.dumps(self.header(checkpoint)).encode()
        file = out.create()
        file.write(self.first_line() + LENGTH.pack(len(text)) + text)
        for name in self.order(checkpoint):
            self.copy(checkpoint, name, file)

    def first_line(self) -> bytes:
        return f"{self.name}\n".encode()

    def parse_header(self, text: bytes, path: Path) -> dict[str, Any]:
        return parse_object(text, "the header", path=path)

    def skip(self, cursor: Cursor, spec: TensorSpec) -> None:
        cursor.skip(spec.nbytes, f"the data of {spec.name!r}")

    def header(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return {
            "tensors": {name: [spec.dtype.value, spec.shape] for name, spec in checkpoint.specs.items()},
            "aliases": dict(checkpoint.aliases),
            "leaves": {path: encode_leaf(leaf) for path, leaf in checkpoint.leaves.items()},
            "metadata": dict(checkpoint.metadata),
        }

    def order(self, checkpoint: Checkpoint) -> Iterable[str]:
        return checkpoint.specs

    def copy(self, checkpoint: Checkpoint, name: str, file: Any) -> None:
        checkpoint.copy_to(name, file)


def _spec(name: str, dtype: str, shape: list[int]) -> TensorSpec:
    spec = TensorSpec(name, DTYPES[dtype], tuple(shape))
    if not all(type(size) is int for size in shape) or shape_problem(shape, spec.dtype.itemsize):
        raise ValueError(f"no shape: {shape}")
    return spec


class Modest(Sound):
    """A sound format that declares little, so that the kit has much to see refused."""

    name = "modest"
    capabilities = Capabilities(
        dtypes=frozenset({DType.F32}), zero_dim=False, empty=False, max_tensor_bytes=8 << 20
    )

    def header(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return {**super().header(checkpoint), "aliases": {}, "leaves": {}, "metadata": {}}


class ReadOnly(Sound):
    """A sound format that cannot be written."""

    name = "read_only"
    capabilities = dataclasses.replace(Sound.capabilities, writes=False)
    write = Format.write
