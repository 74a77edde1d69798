"""Zip archives as containers of checkpoints: read within bounds, written with the kernel's copy.

`ZipArchive` finds the entries of an archive, `ZipWriter` adds entries to one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptio.lazily import getter

if TYPE_CHECKING:
    from ckptio.archive.directory import ZipEntry
    from ckptio.archive.reading import ZipArchive, first_entry
    from ckptio.archive.writing import ZipWriter, entry_name_problem

__all__ = ["ZipArchive", "ZipEntry", "ZipWriter", "entry_name_problem", "first_entry"]

__getattr__ = getter(__name__, __all__, ("directory", "reading", "writing"))
