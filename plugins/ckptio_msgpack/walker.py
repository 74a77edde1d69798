"""From bytes to a tree: one pass over the heads of all values, without recursion.

In the tree, a dict that is not empty is a map and an `Array` says where an array's bytes are; all
else is a plain leaf. A list that holds an array or a map is an `Items`; any other list is a leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ckptio import CorruptCheckpointError, UnsupportedError, current_limits
from ckptio.leaves import join_keys
from ckptio_msgpack.arrays import Array, join_chunks, read_array, read_complex, unsupported
from ckptio_msgpack.wire import ARRAY, CHUNKED, COMPLEX, SCALAR, Head, Reader, read_head

__all__ = ["Items", "Walker"]

_LONGEST_PATH = 200


class Items(dict[str, Any]):
    """The elements of a list that is no leaf, keyed ``"0"``, ``"1"``, …"""


@dataclass(slots=True)
class _Frame:
    """A map or list being read: ``left`` entries are to come; ``key`` is that of the entry at hand."""

    left: int
    start: int
    items: dict[str, Any] | list[Any]
    key: str | None = None
    plain: bool = True

    def put(self, value: Any) -> None:
        if isinstance(self.items, list):
            self.items.append(value)
        else:
            assert self.key is not None
            self.items[self.key] = value
        if isinstance(value, Array) or (isinstance(value, dict) and value):
            self.plain = False


class Walker:
    """Reads one checkpoint from ``reader``.

    ``arrays`` counts the heads of arrays and marks of chunked arrays that were well formed, which is
    what tells a checkpoint from other bytes, even when something after them is damaged.
    """

    def __init__(self, reader: Reader) -> None:
        self.arrays = 0
        self._reader = reader
        self._limits = current_limits()
        self._others = 0
        self._elements = 0
        self._stack: list[_Frame] = []

    def root(self) -> dict[str, Any]:
        """Return the tree of the one map that the file is.

        Raises `CorruptCheckpointError` or `UnsupportedError`, with offset and path in the message.
        """
        try:
            tree = self._walk()
        except CorruptCheckpointError as error:
            what = f"{error.what}{self._where()}"
            raise CorruptCheckpointError(what, path=error.path, offset=error.offset) from None
        except UnsupportedError as error:
            raise UnsupportedError(f"{error}{self._where()}") from None
        if not isinstance(tree, dict):
            raise unsupported(self._reader, _BARE, 0)
        if self._reader.left:
            raise self._reader.error(f"{self._reader.left} bytes follow the end of the checkpoint")
        return tree

    def _walk(self) -> Any:
        start = self._reader.offset
        head = read_head(self._reader)
        if head.kind == "ext" and head.code in (ARRAY, SCALAR):
            raise unsupported(self._reader, _BARE, start)
        if head.kind != "map":
            raise self._reader.error(f"a flax checkpoint is a map, but this is a {head.kind} value", start)
        self._enter(head, start)
        while True:
            frame = self._stack[-1]
            if frame.left:
                self._next_entry(frame)
                continue
            value = self._closed(frame)
            self._stack.pop()
            if not self._stack:
                return value
            self._stack[-1].put(value)

    def _next_entry(self, frame: _Frame) -> None:
        frame.left -= 1
        frame.key = str(len(frame.items)) if isinstance(frame.items, list) else self._key(frame, frame.items)
        start = self._reader.offset
        head = read_head(self._reader)
        if head.kind in ("map", "list"):
            self._enter(head, start)
        else:
            frame.put(self._value(head, start))

    def _enter(self, head: Head, start: int) -> None:
        self._count_other()
        if head.kind == "list":
            self._count_elements(head.value, start)
        if len(self._stack) >= self._limits.nesting:
            raise self._reader.error(
                f"maps and lists are nested more than {self._limits.nesting} deep", start
            )
        self._stack.append(_Frame(head.value, start, {} if head.kind == "map" else []))

    def _closed(self, frame: _Frame) -> Any:
        frame.key = None
        if isinstance(frame.items, dict):
            chunked = CHUNKED in frame.items
            return join_chunks(self._reader, frame.items, frame.start) if chunked else frame.items
        if frame.plain:
            return frame.items
        return Items((str(index), value) for index, value in enumerate(frame.items))

    def _key(self, frame: _Frame, items: dict[str, Any]) -> str:
        frame.key = None
        start = self._reader.offset
        head = read_head(self._reader)
        if head.kind != "str":
            what = f"the key {head.value!r}" if head.kind == "plain" else f"a {head.kind} value as a key"
            raise unsupported(self._reader, f"{what}; only strings can name tensors", start)
        key = self._text(head, start)
        if key in items:
            frame.key = key
            raise self._reader.error("a key that stands twice in one map", start)
        if key == CHUNKED:
            self._count_array()
        return key

    def _value(self, head: Head, start: int) -> Any:
        if head.kind == "ext" and head.code in (ARRAY, SCALAR):
            array = read_array(self._reader, head, start)
            self._count_array()
            self._reader.skip(array.pieces[0][1], "an array")
            return array
        if isinstance(self._stack[-1].items, dict):
            self._count_other()
        if head.kind == "plain":
            return head.value
        if head.kind == "str":
            return self._text(head, start)
        if head.kind == "bin":
            return self._reader.take(head.value, "a byte string")
        if head.code == COMPLEX:
            return read_complex(self._reader, head, start)
        what = "a timestamp" if head.code == -1 else f"a value of ext type {head.code}"
        raise unsupported(self._reader, f"{what}, which is none of flax's", start)

    def _text(self, head: Head, start: int) -> str:
        try:
            return self._reader.take(head.value, "a string").decode()
        except UnicodeDecodeError:
            raise self._reader.error("a string that is not UTF-8", start) from None

    def _count_array(self) -> None:
        self.arrays += 1
        if self.arrays > self._limits.tensors:
            raise self._reader.error(f"more than {self._limits.tensors} arrays")

    def _count_elements(self, count: int, start: int) -> None:
        # Known before they are read: a list of single bytes would take seconds per megabyte.
        self._elements += count
        if self._elements > self._limits.tensors:
            raise self._reader.error(f"lists of more than {self._limits.tensors} elements", start)

    def _count_other(self) -> None:
        # Each takes up to a hundred times its bytes in memory, so that fewer are let in.
        self._others += 1
        if self._others > self._limits.tensors // 4:
            raise self._reader.error(f"more than {self._limits.tensors // 4} maps, lists and plain values")

    def _where(self) -> str:
        path = join_keys(frame.key for frame in self._stack if frame.key is not None)
        short = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}…"
        return f", in {short!r}" if path else ""


_BARE = "the file is one array without a name, where a flax checkpoint is a map of arrays"
