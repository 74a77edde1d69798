"""torch's zip archives (torch.save since 1.6): a folder with a pickle and one entry per storage.

``<folder>/data.pkl`` is the pickle, ``<folder>/data/<key>`` a storage, ``<folder>/byteorder`` says little
or big. A folder that also has ``constants.pkl`` or ``code/`` is a TorchScript program.
"""

from __future__ import annotations

from ckptio import CorruptCheckpointError, SourceFile, UnsupportedError, current_limits
from ckptio.archive import ZipArchive
from ckptio_torch.reading import Place, TorchCheckpoint, read_tree
from ckptio_torch.source import Bytes

__all__ = ["read_zip"]

_SHORT = 64


def read_zip(file: SourceFile, *, skip_unknown: bool) -> TorchCheckpoint:
    """Return the checkpoint that the archive ``file`` holds."""
    archive = ZipArchive(file)
    folder = _folder(archive)
    pickle = archive.entries[f"{folder}data.pkl"]
    data = archive.read(pickle, current_limits().header_bytes)
    tree = read_tree(Bytes(data, file.path, pickle.offset), file.path, skip_unknown=skip_unknown)
    prefix = f"{folder}data/"
    places = {
        name[len(prefix) :]: Place(entry.offset, entry.size, entry.crc, None if entry.stored else entry)
        for name, entry in archive.entries.items()
        if name.startswith(prefix)
    }
    return TorchCheckpoint(file, tree, places, archive=archive, swap=_is_big_endian(archive, folder))


def _folder(archive: ZipArchive) -> str:
    """Return the one folder with a pickle, its slash included."""
    found = [name[: -len("data.pkl")] for name in archive.entries if name.endswith("/data.pkl")]
    if any("/constants.pkl" in f"/{name}" or "/code/" in f"/{name}" for name in archive.entries):
        raise UnsupportedError(
            f"{archive.file.path}: a TorchScript program (torch.jit.save), not a checkpoint; "
            "torch.jit.load it and save its state_dict()"
        )
    if len(found) != 1 or found[0].count("/") != 1:
        raise CorruptCheckpointError(
            f"no archive of torch.save: {len(found)} entries <folder>/data.pkl instead of one",
            path=archive.file.path,
        )
    return found[0]


def _is_big_endian(archive: ZipArchive, folder: str) -> bool:
    entry = archive.entries.get(f"{folder}byteorder")
    order = b"little" if entry is None else archive.read(entry, _SHORT)
    if order not in (b"little", b"big"):
        raise CorruptCheckpointError(
            f"the byte order is {order!r}, neither little nor big",
            path=archive.file.path,
            offset=entry.offset if entry is not None else None,
        )
    return order == b"big"
