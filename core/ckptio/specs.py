"""What a header says of one tensor: its name, element type and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ckptio.dtypes import DType
from ckptio.limits import shape_problem

__all__ = ["TensorSpec"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The name, element type and shape of one tensor."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, name: str, dtype: object, shape: object) -> TensorSpec:
        """Return the spec that a file gives in words: the name of a dtype, a list of dimensions.

        Raises ValueError with the reason for anything else, and for a shape that no array can have.
        """
        if not isinstance(dtype, str) or not isinstance(shape, list | tuple):
            raise ValueError("no dtype and shape")
        if not all(type(size) is int for size in shape):
            raise ValueError("the dimensions are not all integers")
        found = DType.parse(dtype)
        problem = shape_problem(shape, found.itemsize)
        if problem is not None:
            raise ValueError(problem)
        return cls(name, found, tuple(shape))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self.size * self.dtype.itemsize
