"""CRC-32 of joined data, from those of its parts: what zlib's C library can do and Python's zlib cannot."""

from __future__ import annotations

__all__ = ["shifted_crc32"]

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
"""The polynomial 1: the bits are reflected, as in the CRC itself."""


def shifted_crc32(crc: int, length: int) -> int:
    """Return what a CRC-32 becomes when ``length`` bytes follow, apart from those bytes' own.

    With ``a`` before ``b``, ``crc32(a + b) == shifted_crc32(crc32(a), len(b)) ^ crc32(b)``; so each of
    the three follows from the other two.
    """
    factor, square = _ONE, _ONE >> 8  # x**8, one byte
    while length:
        if length & 1:
            factor = _product(factor, square)
        square = _product(square, square)
        length >>= 1
    return _product(factor, crc)


def _product(one: int, other: int) -> int:
    """Multiply two polynomials over GF(2), modulo that of the CRC."""
    product = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            product ^= other
        other = other >> 1 ^ _POLYNOMIAL if other & 1 else other >> 1
    return product
