"""The element types of ggml: the number of each, its block, and what it is outside of GGUF.

Source: ``GGMLQuantizationType`` and ``GGML_QUANT_SIZES`` of the package gguf 0.19.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptio import DType

__all__ = ["BY_DTYPE", "BY_ID", "BY_NAME", "FILE_TYPES", "QUANTIZERS", "GgmlType"]


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One element type: ``block`` elements of a row take ``nbytes`` bytes.

    ``dtype`` is that of a plain type; a quantised one has None. ``decoded`` says whether the package gguf
    can turn a quantised one into floats.
    """

    id: int
    name: str
    block: int
    nbytes: int
    dtype: DType | None = None
    decoded: bool = True

    def size_of(self, count: int) -> int:
        """Return the bytes of ``count`` elements, a multiple of the block."""
        return count // self.block * self.nbytes

    def row_problem(self, shape: Sequence[int]) -> str | None:
        """Return why rows of this shape are no whole blocks, or None when they are."""
        if self.block == 1:
            return None
        row = shape[-1] if shape else 1
        return (
            f"rows of {row} are no multiple of the {self.block} of {self.name}" if row % self.block else None
        )


_TYPES = (
    GgmlType(0, "F32", 1, 4, DType.F32),
    GgmlType(1, "F16", 1, 2, DType.F16),
    GgmlType(2, "Q4_0", 32, 18),
    GgmlType(3, "Q4_1", 32, 20),
    GgmlType(6, "Q5_0", 32, 22),
    GgmlType(7, "Q5_1", 32, 24),
    GgmlType(8, "Q8_0", 32, 34),
    GgmlType(9, "Q8_1", 32, 40, decoded=False),
    GgmlType(10, "Q2_K", 256, 84),
    GgmlType(11, "Q3_K", 256, 110),
    GgmlType(12, "Q4_K", 256, 144),
    GgmlType(13, "Q5_K", 256, 176),
    GgmlType(14, "Q6_K", 256, 210),
    GgmlType(15, "Q8_K", 256, 292, decoded=False),
    GgmlType(16, "IQ2_XXS", 256, 66),
    GgmlType(17, "IQ2_XS", 256, 74),
    GgmlType(18, "IQ3_XXS", 256, 98),
    GgmlType(19, "IQ1_S", 256, 50),
    GgmlType(20, "IQ4_NL", 32, 18),
    GgmlType(21, "IQ3_S", 256, 110),
    GgmlType(22, "IQ2_S", 256, 82),
    GgmlType(23, "IQ4_XS", 256, 136),
    GgmlType(24, "I8", 1, 1, DType.I8),
    GgmlType(25, "I16", 1, 2, DType.I16),
    GgmlType(26, "I32", 1, 4, DType.I32),
    GgmlType(27, "I64", 1, 8, DType.I64),
    GgmlType(28, "F64", 1, 8, DType.F64),
    GgmlType(29, "IQ1_M", 256, 56),
    GgmlType(30, "BF16", 1, 2, DType.BF16),
    GgmlType(34, "TQ1_0", 256, 54),
    GgmlType(35, "TQ2_0", 256, 66),
    GgmlType(39, "MXFP4", 32, 17),
    GgmlType(40, "NVFP4", 64, 36),
    GgmlType(41, "Q1_0", 128, 18, decoded=False),
)
BY_ID = {each.id: each for each in _TYPES}
BY_NAME = {each.name: each for each in _TYPES}
BY_DTYPE = {each.dtype: each for each in _TYPES if each.dtype is not None}

QUANTIZERS = {"q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7, "tq1_0": 36, "tq2_0": 37, "mxfp4": 38}
"""What the package can quantise to, and the ``general.file_type`` of a model that is mostly of that type."""
FILE_TYPES = {"F32": 0, "F16": 1, "BF16": 32} | {name.upper(): value for name, value in QUANTIZERS.items()}
"""The ``general.file_type`` of all types that are written, not carried (``LlamaFileType`` of the package)."""
