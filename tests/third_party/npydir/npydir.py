"""A directory of ``.npy`` files, and ``index.json``: the name, dtype and shape of the tensor in each."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ckptio
from ckptio.checkpoint import CHUNK_BYTES
from ckptio.files import read_chunks
from ckptio.jsontext import parse_object

INDEX = "index.json"
DTYPES = frozenset(dtype for dtype in ckptio.DType if dtype.numpy.isbuiltin == 1)


@ckptio.hookimpl
def ckptio_format() -> ckptio.Format:
    return NpydirFormat()


class NpydirFormat(ckptio.Format):
    name = "npydir"
    summary = "a directory of .npy files and an index"
    capabilities = ckptio.Capabilities(dtypes=DTYPES, shards=True)

    def open(self, path: Path, options: Mapping[str, Any]) -> ckptio.Checkpoint:
        return NpydirCheckpoint(path)

    def write(self, checkpoint: ckptio.Checkpoint, out: ckptio.Output, options: Mapping[str, Any]) -> None:
        for number, (name, spec) in enumerate(checkpoint.specs.items()):
            file = out.create(f"{number:06d}.npy")
            file.write(npy_header(spec))
            checkpoint.copy_to(name, file)
            file.finish()
        index = {name: [spec.dtype.value, spec.shape] for name, spec in checkpoint.specs.items()}
        out.create(INDEX).write(json.dumps(index).encode())

    def match(self, probe: ckptio.Probe) -> ckptio.Match:
        names = set(probe.listing or ())
        if INDEX in names and all(name.endswith(".npy") for name in names - {INDEX}):
            return ckptio.Match(ckptio.Confidence.SURE, "it has .npy files and their index")
        return ckptio.Match(ckptio.Confidence.NO, "no directory of .npy files and an index")


class NpydirCheckpoint(ckptio.Checkpoint):
    specs: Mapping[str, ckptio.TensorSpec] = {}

    def __init__(self, path: Path) -> None:
        self.specs = read_index(path / INDEX)
        self.data = {}
        for number, spec in enumerate(self.specs.values()):
            header = npy_header(spec)
            with contextlib.closing(ckptio.SourceFile(path / f"{number:06d}.npy")) as file:
                if file.size != len(header) + spec.nbytes or file.read_at(0, len(header)) != header:
                    raise ckptio.CorruptCheckpointError(f"not the array of {spec}", path=file.path)
            self.data[spec.name] = (file.path, len(header))

    def chunks(self, name: str, max_bytes: int = CHUNK_BYTES) -> Iterator[memoryview]:
        if name not in self.data:
            raise ValueError("the checkpoint is closed")
        (path, offset), spec = self.data[name], self.specs[name]
        with contextlib.closing(ckptio.SourceFile(path)) as file:
            yield from read_chunks([ckptio.Span(file, offset, spec.nbytes)], max_bytes, spec.dtype.itemsize)

    def close(self) -> None:
        self.data = {}


def read_index(path: Path) -> dict[str, ckptio.TensorSpec]:
    with contextlib.closing(ckptio.SourceFile(path)) as file:
        index = parse_object(ckptio.Cursor(file).take(file.size, "the index"), "the index", path=path)
    specs = {}
    for name, entry in index.items():
        try:
            specs[name] = ckptio.TensorSpec.parse(name, *entry)
        except (TypeError, ValueError) as error:
            raise ckptio.CorruptCheckpointError(f"{name!r}: {error}", path=path) from None
    return specs


def npy_header(spec: ckptio.TensorSpec) -> bytes:
    """Return the bytes before the data, as numpy writes them."""
    file = io.BytesIO()
    fields = {"descr": spec.dtype.numpy.str, "fortran_order": False, "shape": spec.shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()
