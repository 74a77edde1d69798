"""A directory of ``.npy`` files, and ``index.json``: the name, dtype and shape of the tensor in each."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ckptio
from ckptio.joined import JoinedCheckpoint
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
        parts = []
        with contextlib.ExitStack() as stack:
            for number, spec in enumerate(read_index(path / INDEX)):
                file = stack.enter_context(ckptio.open_source(path / f"{number:06d}.npy"))
                header = npy_header(spec)
                if file.size != len(header) + spec.nbytes or file.read_at(0, len(header)) != header:
                    raise ckptio.CorruptCheckpointError(f"not the array of {spec}", path=file.path)
                parts.append(ckptio.FileCheckpoint(file, {spec.name: spec}, {spec.name: len(header)}))
        return JoinedCheckpoint(parts)

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


def read_index(path: Path) -> list[ckptio.TensorSpec]:
    with contextlib.closing(ckptio.SourceFile(path)) as file:
        index = parse_object(ckptio.Cursor(file).take(file.size, "the index"), "the index", path=path)
    try:
        return [ckptio.TensorSpec.parse(name, *entry) for name, entry in index.items()]
    except (TypeError, ValueError) as error:
        raise ckptio.CorruptCheckpointError(f"the index: {error}", path=path) from None


def npy_header(spec: ckptio.TensorSpec) -> bytes:
    """Return the bytes before the data, as numpy writes them."""
    file = io.BytesIO()
    fields = {"descr": spec.dtype.numpy.str, "fortran_order": False, "shape": spec.shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()
