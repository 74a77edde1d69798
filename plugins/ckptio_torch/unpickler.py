"""A restricted unpickler: it follows the opcodes that torch writes and builds inert records.

Nothing is imported and nothing is called that the table of ``ckptio_torch.classes`` does not have;
a global outside of it becomes a record and is listed. The opcodes are those of protocols 2 to 5
(Python's ``pickletools`` documents them) without the textual ones, the extension registry and
buffers outside of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from ckptio import CorruptCheckpointError
from ckptio_torch.classes import BadArgumentsError, build, look_up, storage_of
from ckptio_torch.records import Map, Storage, Tagged, Unknown
from ckptio_torch.source import Budget, Reader

__all__ = ["Unpickler"]

_LONGEST_NAME = 1024
_NOTHING = object()
_I4, _U2, _U4, _U8, _F8 = (struct.Struct(layout) for layout in ("<i", "<H", "<I", "<Q", ">d"))


class Unpickler:
    """Reads one pickle; ``unknown`` has the globals that are not on the list, and where each stood.

    ``storages`` has the first storage of each key.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.budget = Budget(reader)
        self.unknown: dict[str, int] = {}
        self.storages: dict[str, Storage] = {}
        self._names: dict[tuple[str, str], Any] = {}
        self._at = reader.offset
        self._memo: list[Any] = []
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []

    def load(self) -> Any:
        """Return the one value of the pickle; raises `CorruptCheckpointError` with the offset."""
        take, operations = self.reader.take, _OPERATIONS
        while True:
            self._at = self.reader.offset
            code = take(1, "a pickle")[0]
            if code == _STOP:
                break
            operation = operations.get(code)
            if operation is None:
                raise self._error(f"the opcode 0x{code:02x} is none that torch writes")
            try:
                operation(self)
            except (BadArgumentsError, UnicodeDecodeError) as error:
                raise self._error(f"a damaged pickle: {error}") from None
            except IndexError:
                raise self._error("a damaged pickle: it takes a value that is not there") from None
        if len(self._stack) != 1 or self._below:
            raise self._error("a damaged pickle: it does not end with one value")
        return self._stack.pop()

    def _error(self, what: str) -> CorruptCheckpointError:
        return self.reader.error(what, self._at)

    def _int(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack(self.reader.take(layout.size, "a number"))
        return value  # type: ignore[no-any-return]

    def _counted(self, layout: struct.Struct, what: str) -> bytes:
        return self.reader.take(self._int(layout), what)

    # Plain values.

    def _number(self, layout: struct.Struct) -> None:
        (value,) = layout.unpack(self.reader.take(layout.size, "a number"))
        self._stack.append(value)

    def _byte(self) -> None:
        self._stack.append(self.reader.take(1, "a number")[0])

    def _long(self) -> None:
        data = self.reader.take(self.reader.take(1, "a number")[0], "a number")
        self._stack.append(int.from_bytes(data, "little", signed=True))

    def _text(self, layout: struct.Struct) -> None:
        self._stack.append(self._counted(layout, "a string").decode("utf-8", "surrogatepass"))

    def _bytes(self, layout: struct.Struct) -> None:
        self._stack.append(self._counted(layout, "bytes"))

    def _byte_array(self) -> None:
        self._stack.append(Tagged("bytearray", self._counted(_U8, "bytes")))

    def _old_string(self, layout: struct.Struct) -> None:
        # A str of Python 2: text in all but a few files.
        data = self._counted(layout, "a string")
        try:
            self._stack.append(data.decode("utf-8"))
        except UnicodeDecodeError:
            self._stack.append(data)

    # Containers.

    def _push(self, value: Any, cost: int) -> None:
        self.budget.spend(cost)
        self._stack.append(value)

    def _mark(self) -> None:
        self.budget.spend(_MARK_COST)
        self._below.append(self._stack)
        self._stack = []

    def _to_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._below.pop()
        self.budget.spend(-_MARK_COST)
        return items

    def _tuple(self) -> None:
        items = tuple(self._to_mark())
        self._push(items, 56 + 8 * len(items))

    def _short_tuple(self, size: int) -> None:
        items = tuple(self._pop() for _ in range(size))
        self._push(items[::-1], 56 + 8 * size)

    def _pop(self) -> Any:
        return self._stack.pop()

    def _append(self) -> None:
        self._extend([self._pop()])

    def _appends(self) -> None:
        self._extend(self._to_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(items)
        elif not isinstance(target, Unknown):
            raise BadArgumentsError("it appends to what is no list")

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._fill([key, value])

    def _set_items(self) -> None:
        self._fill(self._to_mark())

    def _fill(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, Unknown):
            target = target.content
        if not isinstance(target, Map) or len(items) % 2:
            raise BadArgumentsError("it sets an item of what is no map")
        target.items.extend(items)

    def _add_items(self) -> None:
        items = self._to_mark()
        target = self._stack[-1]
        if not isinstance(target, Tagged) or not isinstance(target.value, list):
            raise BadArgumentsError("it adds to what is no set")
        target.value.extend(items)

    # The memo.

    def _put(self, index: int) -> None:
        if index > self.budget.read:
            raise BadArgumentsError(f"a memo of {index} entries")
        self._memo.extend([_NOTHING] * (index + 1 - len(self._memo)))
        self._memo[index] = self._stack[-1]

    def _get(self, index: int) -> None:
        if index >= len(self._memo) or self._memo[index] is _NOTHING:
            raise BadArgumentsError(f"entry {index} of the memo is not there")
        self._stack.append(self._memo[index])

    # Classes, functions and what they would make.

    def _line(self) -> str:
        data = bytearray()
        while (byte := self.reader.take(1, "the name of a global")) != b"\n":
            data += byte
            if len(data) > _LONGEST_NAME:
                raise BadArgumentsError("the name of a global has no end")
        return data.decode("utf-8")

    def _global(self) -> None:
        module = self._line()
        self._find(module, self._line())

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not (isinstance(name, str) and isinstance(module, str)) or len(module + name) > _LONGEST_NAME:
            raise BadArgumentsError("the name of a global is no text")
        self._find(module, name)

    def _find(self, module: str, name: str) -> None:
        record = self._names.get((module, name))
        if record is None:
            self.budget.spend(1024)
            full = f"{'builtins' if module == '__builtin__' else module}.{name}"
            record, listed = look_up(full)
            if not listed:
                self.unknown.setdefault(full, self._at)
            self._names[module, name] = record
        self._stack.append(record)

    def _reduce(self) -> None:
        args, function = self._pop(), self._pop()
        if not isinstance(args, tuple):
            raise BadArgumentsError("it calls with what is no tuple")
        self._push(build(function, args), 200)

    def _new_with_names(self) -> None:
        self._pop()
        self._reduce()

    def _build(self) -> None:
        state, target = self._pop(), self._stack[-1]
        if isinstance(target, Map) and target.ordered and isinstance(state, Map):
            target.attributes = state
        elif isinstance(target, Unknown):
            if isinstance(state, Map):
                target.content.items.extend(state.items)
        else:
            raise BadArgumentsError("it sets attributes of what has none")

    def _storage(self) -> None:
        storage = storage_of(self._pop())
        if isinstance(storage, Storage):
            self.storages.setdefault(storage.key, storage)
        self._push(storage, 250)


_MARK_COST = 130
_STOP = ord(".")


def _with(method: Callable[..., None], *args: Any) -> Callable[[Unpickler], None]:
    return lambda unpickler: method(unpickler, *args)


def _constant(value: Any) -> Callable[[Unpickler], None]:
    return lambda unpickler: unpickler._stack.append(value)


_U1 = struct.Struct("<B")
_U = Unpickler
_OPERATIONS: dict[int, Callable[[Unpickler], Any]] = {
    0x80: lambda u: u.reader.take(1, "a pickle"),  # PROTO
    0x95: lambda u: u.reader.take(8, "a pickle"),  # FRAME: a hint for readers of streams
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("J"): _with(_U._number, _I4),
    ord("K"): _U._byte,
    ord("M"): _with(_U._number, _U2),
    0x8A: _U._long,
    ord("G"): _with(_U._number, _F8),
    ord("X"): _with(_U._text, _U4),
    0x8C: _with(_U._text, _U1),
    0x8D: _with(_U._text, _U8),
    ord("B"): _with(_U._bytes, _U4),
    ord("C"): _with(_U._bytes, _U1),
    0x8E: _with(_U._bytes, _U8),
    0x96: _U._byte_array,
    ord("T"): _with(_U._old_string, _U4),
    ord("U"): _with(_U._old_string, _U1),
    ord("("): _U._mark,
    ord("0"): _U._pop,
    ord("1"): _U._to_mark,
    ord(")"): _constant(()),
    ord("t"): _U._tuple,
    0x85: _with(_U._short_tuple, 1),
    0x86: _with(_U._short_tuple, 2),
    0x87: _with(_U._short_tuple, 3),
    ord("]"): lambda u: u._push([], 110),
    ord("a"): _U._append,
    ord("e"): _U._appends,
    ord("}"): lambda u: u._push(Map(), 220),
    ord("s"): _U._set_item,
    ord("u"): _U._set_items,
    0x8F: lambda u: u._push(Tagged("set", []), 220),
    0x90: _U._add_items,
    ord("q"): lambda u: u._put(u._int(_U1)),
    ord("r"): lambda u: u._put(u._int(_U4)),
    0x94: lambda u: u._put(len(u._memo)),
    ord("h"): lambda u: u._get(u._int(_U1)),
    ord("j"): lambda u: u._get(u._int(_U4)),
    ord("c"): _U._global,
    0x93: _U._stack_global,
    ord("R"): _U._reduce,
    0x81: _U._reduce,  # NEWOBJ
    0x92: _U._new_with_names,
    ord("b"): _U._build,
    ord("Q"): _U._storage,
}
