"""The classes and functions that a checkpoint of torch may name, and the record that each one makes.

The list follows ``torch/_weights_only_unpickler.py`` and ``torch/_utils.py`` of torch 2.13, which say
what ``torch.load(weights_only=True)`` accepts and what the arguments are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckptio import DType
from ckptio_torch.dtypes import DTYPES, OTHER_DTYPES, STORAGES
from ckptio_torch.reasons import LAZY, REASONS
from ckptio_torch.records import Global, Map, Storage, StorageType, Tagged, Tensor, Unknown

__all__ = ["BadArgumentsError", "build", "look_up", "storage_of"]


class BadArgumentsError(ValueError):
    """Arguments that torch itself never writes."""


def look_up(name: str) -> tuple[Any, bool]:
    """Return the record of a global by its full name, and whether all of it can be read."""
    module, _, last = name.rpartition(".")
    if module in ("torch", "torch.cuda", "torch.storage") and last in _STORAGE_TYPES:
        return _STORAGE_TYPES[last], True
    if module == "torch" and (last in DTYPES or last in OTHER_DTYPES):
        return Tagged("torch.dtype", last), True
    if name in _MAKERS:
        return Global(name), name not in REASONS
    return Unknown(name), False


def build(function: Any, args: tuple[Any, ...]) -> Any:
    """Return the record that calling a global would make; `BadArgumentsError` when it could not be."""
    if isinstance(function, Unknown):
        return Unknown(function.name)
    if not isinstance(function, Global):
        raise BadArgumentsError(f"it calls a {type(function).__name__}")
    return _MAKERS[function.name](args)


def storage_of(identity: Any) -> Any:
    """Return the storage that a persistent id stands for.

    It is ``("storage", class, key, location, elements)``, in legacy files with a view or None as sixth:
    ``(key, first element, elements)``. Where the storage was (cuda:0, …) does not matter here.
    """
    if isinstance(identity, tuple) and len(identity) == 4 and identity[0] == "module":
        # torch.save of a whole module: its class, and the source of that as it was.
        return identity[1]
    match identity:
        case ("storage", Unknown() as unknown, _, _, _, *_):
            return Unknown(unknown.name)
        case ("storage", StorageType() as kind, str(key), str(), int(count), *views) if count >= 0:
            pass
        case _:
            raise BadArgumentsError("a persistent id that is no storage")
    itemsize = kind.dtype.itemsize if kind.dtype is not None else 1
    total = count * itemsize
    match views:
        case [] | [None]:
            return Storage(key, kind.dtype, 0, total, total)
        case [(_, int(first), int(size))] if first >= 0 and size >= 0 and first + size <= count:
            return Storage(key, kind.dtype, first * itemsize, size * itemsize, total)
    raise BadArgumentsError("a view of a storage that reaches out of it")


def _tensor(args: tuple[Any, ...]) -> Tensor | Unknown:
    match args:
        case (Unknown() as unknown, *_):
            return Unknown(unknown.name)
        case (Storage() as storage, int(offset), sizes, steps, *rest) if offset >= 0:
            shape, strides = _sizes(_plain(sizes)), _sizes(_plain(steps))
        case _:
            raise BadArgumentsError("a tensor without a storage, an offset, sizes and strides")
    if len(shape) != len(strides):
        raise BadArgumentsError("a tensor whose sizes and strides do not fit")
    # Since torch 1.9 a dict of flags may come last; v3 names the dtype before it.
    requires_grad, dtype = False, storage.dtype or DType.U8
    flags: Any = None
    match rest:
        case []:
            pass
        case [bool(requires_grad), _, Tagged("torch.dtype", name), *more] if len(more) < 2:
            if name not in DTYPES:
                return Unknown(f"torch.{name}")
            dtype, flags = DTYPES[name], more[0] if more else None
        case [bool(requires_grad), _, *more] if len(more) < 2:
            flags = more[0] if more else None
        case _:
            raise BadArgumentsError("a tensor with arguments that are not known")
    if flags is not None and not isinstance(flags, Map):
        raise BadArgumentsError("a tensor with arguments that are not known")
    if flags is not None and any(flag is not False for flag in flags.items[1::2]):
        return Unknown(LAZY)
    return Tensor(storage, dtype, offset, shape, strides, requires_grad)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Tagged) and value.kind == "torch.Size" else value


def _sizes(value: Any) -> tuple[int, ...]:
    if isinstance(value, tuple) and all(type(size) is int and size >= 0 for size in value):
        return value
    raise BadArgumentsError("sizes or strides that are no numbers")


def _parameter(args: tuple[Any, ...]) -> Tensor | Unknown:
    match args:
        case (Unknown() as unknown, *_):
            return Unknown(unknown.name)
        case (Tensor() as data, bool(requires_grad), _, *state) if len(state) < 2:
            return _changed(data, requires_grad=requires_grad, parameter=True, stripped=bool(state))
    raise BadArgumentsError("a parameter without a tensor")


def _changed(tensor: Tensor, **changes: Any) -> Tensor:
    fields = {name: getattr(tensor, name) for name in Tensor.__slots__}
    return Tensor(**{**fields, **changes})


def _from_type(args: tuple[Any, ...]) -> Any:
    match args:
        case (Global(name), _, tuple() as inner, _) if name in _TENSOR_MAKERS:
            made = _MAKERS[name](inner)
            return _changed(made, stripped=True) if isinstance(made, Tensor) else made
        case (Unknown() as unknown, *_):
            return Unknown(unknown.name)
    raise BadArgumentsError("a tensor of a subclass that is not known")


def _ordered(args: tuple[Any, ...]) -> Map:
    made = Map("OrderedDict")
    match args:
        case ():
            return made
        case (list() as pairs,):
            # As Python 2 wrote it: a list of pairs.
            for pair in pairs:
                if not isinstance(pair, list | tuple) or len(pair) != 2:
                    raise BadArgumentsError("an OrderedDict of what are no pairs")
                made.items.extend(pair)
            return made
    raise BadArgumentsError("an OrderedDict of what are no pairs")


def _counter(args: tuple[Any, ...]) -> Map:
    match args:
        case ():
            return Map("Counter")
        case (Map() as counts,):
            return Map("Counter", counts.items)
    raise BadArgumentsError("a Counter of what is no dict")


def _encoded(args: tuple[Any, ...]) -> bytes:
    match args:
        case (str(text), "latin1" | "latin-1"):
            return text.encode("latin-1")
    raise BadArgumentsError("bytes that are not written as text in Latin 1")


def _no_bytes(args: tuple[Any, ...]) -> bytes:
    if args:
        raise BadArgumentsError("bytes that are not written as text in Latin 1")
    return b""


def _bytearray(args: tuple[Any, ...]) -> Tagged:
    match args:
        case ():
            return Tagged("bytearray", b"")
        case (bytes(data),):
            return Tagged("bytearray", data)
    return Tagged("bytearray", _encoded(args))


def _complex(args: tuple[Any, ...]) -> complex:
    match args:
        case (float(real), float(imaginary)):
            return complex(real, imaginary)
    raise BadArgumentsError("a complex number that is not two floats")


def _size(args: tuple[Any, ...]) -> Tagged:
    match args:
        case (tuple() | list() as sizes,):
            return Tagged("torch.Size", _sizes(tuple(sizes)))
    raise BadArgumentsError("a torch.Size of what are no numbers")


def _set(args: tuple[Any, ...]) -> Tagged:
    match args:
        case ():
            return Tagged("set", [])
        case (list() as items,):
            return Tagged("set", items)
    raise BadArgumentsError("a set of what is no list")


def _device(args: tuple[Any, ...]) -> Tagged:
    match args:
        case (str(name),):
            return Tagged("torch.device", name)
        case (str(name), int(index)):
            return Tagged("torch.device", f"{name}:{index}")
    raise BadArgumentsError("a torch.device without a name")


_STORAGE_TYPES: Mapping[str, StorageType] = {
    "UntypedStorage": StorageType("UntypedStorage", None),
    **{name: StorageType(name, dtype) for dtype, name in STORAGES.items()},
}
_TENSOR_MAKERS: Mapping[str, Callable[[tuple[Any, ...]], Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
}
_MAKERS: Mapping[str, Callable[[tuple[Any, ...]], Any]] = {
    **_TENSOR_MAKERS,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "collections.OrderedDict": _ordered,
    "collections.Counter": _counter,
    "_codecs.encode": _encoded,
    "builtins.bytearray": _bytearray,
    "builtins.bytes": _no_bytes,
    "builtins.complex": _complex,
    "builtins.set": _set,
    "torch.Size": _size,
    "torch.device": _device,
}
