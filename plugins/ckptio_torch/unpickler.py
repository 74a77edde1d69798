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

from ckptio_torch.classes import BadArgumentsError, build, look_up, storage_of
from ckptio_torch.machine import Machine
from ckptio_torch.records import Map, Storage, Tagged, Unknown
from ckptio_torch.source import Reader

__all__ = ["Unpickler"]

_LONGEST_NAME = 1024
_I4, _U1, _U2, _U4, _U8, _F8 = (struct.Struct(layout) for layout in ("<i", "<B", "<H", "<I", "<Q", ">d"))


class Unpickler(Machine):
    """Reads one pickle; ``unknown`` has the globals that are not on the list, and where each stood.

    ``storages`` has the first storage of each key.
    """

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self.unknown: dict[str, int] = {}
        self.storages: dict[str, Storage] = {}
        self._names: dict[tuple[str, str], Any] = {}

    def load(self) -> Any:
        """Return the one value of the pickle; raises `CorruptCheckpointError` with the offset."""
        take, operations = self.reader.take, _OPERATIONS
        while True:
            self.at = self.reader.offset
            code = take(1, "a pickle")[0]
            if code == _STOP:
                break
            operation = operations.get(code)
            if operation is None:
                raise self.error(f"the opcode 0x{code:02x} is none that torch writes")
            try:
                operation(self)
            except (BadArgumentsError, UnicodeDecodeError) as error:
                raise self.error(f"a damaged pickle: {error}") from None
            except IndexError:
                raise self.error("a damaged pickle: it takes a value that is not there") from None
        if len(self.stack) != 1 or self.below:
            raise self.error("a damaged pickle: it does not end with one value")
        return self.stack.pop()

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
        name, module = self.pop(), self.pop()
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
                self.unknown.setdefault(full, self.at)
            self._names[module, name] = record
        self.stack.append(record)

    def _reduce(self) -> None:
        args, function = self.pop(), self.pop()
        if not isinstance(args, tuple):
            raise BadArgumentsError("it calls with what is no tuple")
        # What is made may be a copy of what is passed, and that can be passed again and again.
        copied = sum(16 * len(each) for each in args if isinstance(each, str | bytes | list | tuple))
        self.budget.spend(200 + copied)
        self.stack.append(build(function, args))

    def _new_with_names(self) -> None:
        self.pop()
        self._reduce()

    def _build(self) -> None:
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, Map) and target.kind == "OrderedDict" and isinstance(state, Map):
            target.attributes = state
        elif isinstance(target, Unknown):
            if isinstance(state, Map):
                self.budget.spend(8 * len(state.items))
                target.content.items.extend(state.items)
        else:
            raise BadArgumentsError("it sets attributes of what has none")

    def _storage(self) -> None:
        storage = storage_of(self.pop())
        if isinstance(storage, Storage):
            self.storages.setdefault(storage.key, storage)
        self.push(storage, 250)


_STOP = ord(".")


def _with(method: Callable[..., None], *args: Any) -> Callable[[Unpickler], None]:
    return lambda unpickler: method(unpickler, *args)


def _constant(value: Any) -> Callable[[Unpickler], None]:
    return lambda unpickler: unpickler.stack.append(value)


_U = Unpickler
_OPERATIONS: dict[int, Callable[[Unpickler], Any]] = {
    0x80: lambda u: u.reader.take(1, "a pickle"),  # PROTO
    0x95: lambda u: u.reader.take(8, "a pickle"),  # FRAME: a hint for readers of streams
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("J"): _with(_U.number, _I4),
    ord("K"): _U.byte,
    ord("M"): _with(_U.number, _U2),
    0x8A: _U.long,
    ord("G"): _with(_U.number, _F8),
    ord("X"): _with(_U.text, _U4),
    0x8C: _with(_U.text, _U1),
    0x8D: _with(_U.text, _U8),
    ord("B"): _with(_U.bytes_, _U4),
    ord("C"): _with(_U.bytes_, _U1),
    0x8E: _with(_U.bytes_, _U8),
    0x96: _U.byte_array,
    ord("T"): _with(_U.old_string, _U4),
    ord("U"): _with(_U.old_string, _U1),
    ord("("): _U.mark,
    ord("0"): _U.pop,
    ord("1"): _U.to_mark,
    ord(")"): _constant(()),
    ord("t"): _U.tuple_,
    0x85: _with(_U.short_tuple, 1),
    0x86: _with(_U.short_tuple, 2),
    0x87: _with(_U.short_tuple, 3),
    ord("]"): lambda u: u.push([], 110),
    ord("a"): _U.append,
    ord("e"): _U.appends,
    ord("}"): lambda u: u.push(Map(), 220),
    ord("s"): _U.set_item,
    ord("u"): _U.set_items,
    0x8F: lambda u: u.push(Tagged("set", []), 220),
    0x90: _U.add_items,
    ord("q"): lambda u: u.put(u.integer(_U1)),
    ord("r"): lambda u: u.put(u.integer(_U4)),
    0x94: lambda u: u.put(len(u._memo)),
    ord("h"): lambda u: u.get(u.integer(_U1)),
    ord("j"): lambda u: u.get(u.integer(_U4)),
    ord("c"): _U._global,
    0x93: _U._stack_global,
    ord("R"): _U._reduce,
    0x81: _U._reduce,  # NEWOBJ
    0x92: _U._new_with_names,
    ord("b"): _U._build,
    ord("Q"): _U._storage,
}
