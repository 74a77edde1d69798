"""The bounds that every reader keeps before it believes what a file says of itself.

Whoever has a checkpoint beyond them raises them in Python, for the calls inside a ``with``::

    with ckptio.raised_limits(tensors=5_000_000):
        checkpoint = ckptio.open("huge.ckpt")
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Limits", "current_limits", "raised_limits", "shape_problem"]

_ARRAY_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest counts and sizes that a header may claim.

    ``tensors`` in one checkpoint, ``header_bytes`` read to find them, ``dimensions`` of one tensor
    (numpy holds no more than 64), and ``nesting`` of maps and lists.
    """

    tensors: int = 1_000_000
    header_bytes: int = 256 << 20
    dimensions: int = 64
    nesting: int = 512


_CURRENT: contextvars.ContextVar[Limits] = contextvars.ContextVar("ckptio_limits", default=Limits())  # noqa: B039


def current_limits() -> Limits:
    """Return the limits in force for this thread or task."""
    return _CURRENT.get()


@contextlib.contextmanager
def raised_limits(
    *,
    tensors: int | None = None,
    header_bytes: int | None = None,
    dimensions: int | None = None,
    nesting: int | None = None,
) -> Iterator[Limits]:
    """Put other limits in force inside the ``with``; what is not named stays as it is."""
    given = {
        "tensors": tensors,
        "header_bytes": header_bytes,
        "dimensions": dimensions,
        "nesting": nesting,
    }
    limits = dataclasses.replace(
        current_limits(), **{name: value for name, value in given.items() if value is not None}
    )
    token = _CURRENT.set(limits)
    try:
        yield limits
    finally:
        _CURRENT.reset(token)


def shape_problem(shape: Sequence[int], itemsize: int) -> str | None:
    """Return why no array can have this shape, or None when one can.

    An empty tensor needs the test too: numpy counts its bytes with the zeros left out.
    """
    if not shape:
        return None
    if len(shape) > current_limits().dimensions:
        return f"a shape of {len(shape)} dimensions has more than {current_limits().dimensions} dimensions"
    if min(shape) < 0:
        return f"a dimension of shape {tuple(shape)} is negative"
    if math.prod(filter(None, shape)) * itemsize > _ARRAY_BYTES:
        return f"shape {tuple(shape)} is larger than any array"
    return None
