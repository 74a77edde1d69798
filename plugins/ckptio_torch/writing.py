"""Writing the archive that ``torch.save`` of torch 2.13 makes, save for what depends on its zip library.

``.format_version`` is left out: it would promise readers that they can compute where each storage lies
from the data descriptors that torch's own zip library writes, and these archives have none.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePath

from ckptio import Checkpoint, Output
from ckptio.archive import ZipWriter, entry_name_problem
from ckptio_torch.building import build_tree
from ckptio_torch.emitter import dump

__all__ = ["write_checkpoint"]

_ALIGNMENT = 64
_OTHER_NAME = "archive"
_ID_DIGITS = 40


def write_checkpoint(checkpoint: Checkpoint, out: Output) -> None:
    """Write all of ``checkpoint``; its folder has the name of the file without the suffix, as torch's has."""
    file = out.create()
    archive = ZipWriter(file)
    folder = PurePath(out.final_name).stem
    if entry_name_problem(f"{folder}/data.pkl") or not folder.strip("."):
        folder = _OTHER_NAME
    pickle = dump(build_tree(checkpoint))
    archive.add(f"{folder}/data.pkl", pickle)
    archive.add(f"{folder}/.storage_alignment", str(_ALIGNMENT).encode())
    archive.add(f"{folder}/byteorder", b"little")
    for index, name in enumerate(checkpoint.specs):
        archive.add_tensor(f"{folder}/data/{index}", checkpoint, name, align=_ALIGNMENT)
    archive.add(f"{folder}/version", b"3\n")
    archive.add(f"{folder}/.data/serialization_id", _identity(pickle))
    archive.finish()


def _identity(pickle: bytes) -> bytes:
    """Return the digits by which torch's logs tell archives apart; equal trees have equal ones."""
    number = int.from_bytes(hashlib.sha256(pickle).digest()[:16], "little")
    return f"{number:0{_ID_DIGITS}d}".encode()
