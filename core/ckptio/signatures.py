"""What a file looks like to the eye: well-known contents, for messages about files that are none of ours."""

from __future__ import annotations

from ckptio.format import Probe

__all__ = ["looks_like"]

_PREFIXES: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive (torch.save since 1.6 writes them, and numpy's npz)"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras)"),
    (b"\x93NUMPY", "a numpy .npy array"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; run `git lfs pull`"),
    (b"<!DOCTYPE html", "a web page, not a checkpoint; the download went wrong"),
    (b"<html", "a web page, not a checkpoint; the download went wrong"),
    (b"CKPT", "an InfiniTrain native checkpoint (statedict)"),
)


def looks_like(probe: Probe) -> str | None:
    """Return what the content of a file looks like, or None when nothing is known of it."""
    head = probe.head
    if probe.listing is not None:
        return None
    if probe.size == 0:
        return "an empty file"
    for prefix, what in _PREFIXES:
        if head.startswith(prefix):
            return what
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        # A msgpack map cannot start so: 0x80 is the empty map, and nothing may follow it.
        return "a Python pickle (torch.save before 1.6, or pickle.dump)"
    if head[257:262] == b"ustar":
        return "a tar archive; unpack it first"
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= probe.size - 8:
        return "a safetensors file"
    if head.lstrip()[:1] in (b"{", b"["):
        return "JSON text"
    return None
