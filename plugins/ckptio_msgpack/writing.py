"""From the tree to bytes, as ``flax.serialization.msgpack_serialize`` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgpack

from ckptio import Checkpoint, Span, TensorSpec
from ckptio.checkpoint import Sink
from ckptio_msgpack.tree import build_tree, in_order, noted_scalars
from ckptio_msgpack.wire import CHUNKED, COMPLEX, array_head

__all__ = ["write_checkpoint"]


def write_checkpoint(checkpoint: Checkpoint, out: Sink, chunk_bytes: int) -> None:
    """Write all of ``checkpoint``; arrays of more than ``chunk_bytes`` are chunked as flax does it."""
    scalars = noted_scalars(checkpoint)
    packer = msgpack.Packer(default=_pack_other)
    for key, value, in_list in in_order(build_tree(checkpoint)):
        if key is not None:
            out.write(packer.pack(key))
        if isinstance(value, TensorSpec):
            scalar = value.name in scalars
            if value.nbytes > chunk_bytes and not scalar and not in_list:
                checkpoint.copy_to(value.name, _Chunks(out, packer, value, chunk_bytes))
            else:
                out.write(array_head(value, scalar=scalar))
                checkpoint.copy_to(value.name, out)
        elif isinstance(value, dict) and value:
            out.write(packer.pack_map_header(len(value)))
        elif isinstance(value, list) and value:
            out.write(packer.pack_array_header(len(value)))
        else:
            out.write(packer.pack(value))


def _pack_other(value: Any) -> Any:
    if isinstance(value, complex):
        return msgpack.ExtType(COMPLEX, msgpack.packb((value.real, value.imag)))
    if isinstance(value, Mapping) and not value:
        return {}
    raise TypeError(f"{type(value).__name__} is no leaf")


class _Chunks:
    """A sink that puts the heads of flax's chunks between the bytes of one tensor as they come in.

    So the tensor is gone through once, and the pieces of files among it stay pieces of files.
    """

    def __init__(self, out: Sink, packer: msgpack.Packer, spec: TensorSpec, chunk_bytes: int) -> None:
        self._out = out
        self._left = 0
        elements = max(1, chunk_bytes // spec.dtype.itemsize)
        out.write(packer.pack_map_header(3) + packer.pack(CHUNKED) + packer.pack(True))
        out.write(packer.pack("shape") + packer.pack({str(i): size for i, size in enumerate(spec.shape)}))
        out.write(packer.pack("chunks") + packer.pack_map_header(-(-spec.size // elements)))
        self._heads = _chunk_heads(packer, spec, elements)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            room = self._room(len(view))
            self._out.write(view[:room])
            view = view[room:]

    def copy(self, span: Span) -> None:
        done = 0
        while done < span.length:
            room = self._room(span.length - done)
            self._out.copy(Span(span.file, span.offset + done, room))
            done += room

    def _room(self, wanted: int) -> int:
        """Return how much of ``wanted`` bytes goes into the chunk at hand, and count it as written."""
        if not self._left:
            self._left, head = next(self._heads)
            self._out.write(head)
        room = min(wanted, self._left)
        self._left -= room
        return room


def _chunk_heads(packer: msgpack.Packer, spec: TensorSpec, elements: int) -> Iterator[tuple[int, bytes]]:
    """Yield the length and the bytes before each chunk of ``elements``, the last one shorter."""
    for index, start in enumerate(range(0, spec.size, elements)):
        chunk = TensorSpec(spec.name, spec.dtype, (min(elements, spec.size - start),))
        yield chunk.nbytes, packer.pack(str(index)) + array_head(chunk)
