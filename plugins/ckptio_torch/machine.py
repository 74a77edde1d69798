"""The stack machine of pickles: what it does to plain values, containers and the memo.

Every length is checked by the reader before anything is allocated, and what the opcodes pile up is
counted against the size of the file (`ckptio_torch.source.Budget`).
"""

from __future__ import annotations

import struct
from typing import Any

from ckptio import CorruptCheckpointError
from ckptio_torch.classes import BadArgumentsError
from ckptio_torch.records import Map, Tagged, Unknown
from ckptio_torch.source import Budget, Reader

__all__ = ["Machine"]

_MARK_COST = 130
_NOTHING = object()
_U1, _U8 = struct.Struct("<B"), struct.Struct("<Q")


class Machine:
    """The stack, the marks and the memo, with a method for each kind of opcode.

    A method raises `BadArgumentsError` or IndexError where a pickle is damaged.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.budget = Budget(reader)
        self.at = reader.offset
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self._memo: list[Any] = []

    def error(self, what: str) -> CorruptCheckpointError:
        return self.reader.error(what, self.at)

    def integer(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack(self.reader.take(layout.size, "a number"))
        return value  # type: ignore[no-any-return]

    def counted(self, layout: struct.Struct, what: str) -> bytes:
        return self.reader.take(self.integer(layout), what)

    # Plain values.

    def number(self, layout: struct.Struct) -> None:
        (value,) = layout.unpack(self.reader.take(layout.size, "a number"))
        self.stack.append(value)

    def byte(self) -> None:
        self.stack.append(self.reader.take(1, "a number")[0])

    def long(self) -> None:
        data = self.reader.take(self.reader.take(1, "a number")[0], "a number")
        self.stack.append(int.from_bytes(data, "little", signed=True))

    def text(self, layout: struct.Struct) -> None:
        self.stack.append(self.counted(layout, "a string").decode("utf-8", "surrogatepass"))

    def bytes_(self, layout: struct.Struct) -> None:
        self.stack.append(self.counted(layout, "bytes"))

    def byte_array(self) -> None:
        self.stack.append(Tagged("bytearray", self.counted(_U8, "bytes")))

    def old_string(self, layout: struct.Struct) -> None:
        # A str of Python 2: text in all but a few files.
        data = self.counted(layout, "a string")
        try:
            self.stack.append(data.decode("utf-8"))
        except UnicodeDecodeError:
            self.stack.append(data)

    # Containers.

    def push(self, value: Any, cost: int) -> None:
        self.budget.spend(cost)
        self.stack.append(value)

    def mark(self) -> None:
        self.budget.spend(_MARK_COST)
        self.below.append(self.stack)
        self.stack = []

    def to_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        self.budget.spend(-_MARK_COST)
        return items

    def tuple_(self) -> None:
        items = tuple(self.to_mark())
        self.push(items, 56 + 8 * len(items))

    def short_tuple(self, size: int) -> None:
        items = tuple(self.pop() for _ in range(size))
        self.push(items[::-1], 56 + 8 * size)

    def pop(self) -> Any:
        return self.stack.pop()

    def append(self) -> None:
        self.extend([self.pop()])

    def appends(self) -> None:
        self.extend(self.to_mark())

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Unknown):
            raise BadArgumentsError("it appends to what is no list")

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.fill([key, value])

    def set_items(self) -> None:
        self.fill(self.to_mark())

    def fill(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, Unknown):
            target = target.content
        if not isinstance(target, Map) or len(items) % 2:
            raise BadArgumentsError("it sets an item of what is no map")
        target.items.extend(items)

    def add_items(self) -> None:
        items = self.to_mark()
        target = self.stack[-1]
        if not isinstance(target, Tagged) or not isinstance(target.value, list):
            raise BadArgumentsError("it adds to what is no set")
        target.value.extend(items)

    # The memo.

    def put(self, index: int) -> None:
        if index > self.budget.read:
            raise BadArgumentsError(f"a memo of {index} entries")
        self._memo.extend([_NOTHING] * (index + 1 - len(self._memo)))
        self._memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        if index >= len(self._memo) or self._memo[index] is _NOTHING:
            raise BadArgumentsError(f"entry {index} of the memo is not there")
        self.stack.append(self._memo[index])
