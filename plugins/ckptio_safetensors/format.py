"""The format ``safetensors``: what it can hold, how it is recognised, and how it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import ckptio
from ckptio import Confidence, Match, Problem
from ckptio.format import capability_problems
from ckptio.output import OutputFile
from ckptio_safetensors.header import DTYPES, LARGEST_HEADER, LENGTH, METADATA, SUFFIX, in_order, pack_header

# Readers and writers are imported when they are needed: formats are also loaded to recognise a file.

__all__ = ["SafetensorsFormat"]

_ENTRY = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*(?:\{|null)')
_SHARD = re.compile(rb'\.safetensors"\s*[,}]')
_PROBED = 64 << 10


def _parse_size(text: str) -> int:
    from ckptio.sharding import parse_size

    return parse_size(text)


class SafetensorsFormat(ckptio.Format):
    """safetensors: any names, its dtypes, and strings in which all else is written."""

    name: ClassVar[str] = "safetensors"
    summary: ClassVar[str] = "safetensors, one file or shards with an index, as transformers writes them"
    suffixes: ClassVar[tuple[str, ...]] = (SUFFIX,)
    capabilities: ClassVar[ckptio.Capabilities] = ckptio.Capabilities(
        dtypes=frozenset(DTYPES.values()), aliases=True, leaves=True, metadata=True, shards=True
    )
    write_options: ClassVar[tuple[ckptio.Option, ...]] = (
        ckptio.Option(
            "max_shard_size",
            _parse_size,
            "make TARGET a directory of shards with no more bytes of tensors each (5GB, 500MB, 1GiB)",
        ),
        ckptio.Option(
            "ties",
            str,
            "store tied tensors once and record the tie, or store each name in full",
            "once",
            ("once", "full"),
        ),
    )

    def open(self, path: Path, options: Mapping[str, Any]) -> ckptio.Checkpoint:
        """Read the header, or those of all shards; the structure is checked, to the last byte of the file."""
        from ckptio_safetensors.reading import open_checkpoint

        return open_checkpoint(path)

    def write(self, checkpoint: ckptio.Checkpoint, out: ckptio.Output, options: Mapping[str, Any]) -> None:
        """Write as safetensors does it, to the byte: by size of element, then by name.

        A directory gets a ``config.json`` where the config is one of transformers'.
        """
        from ckptio.folders import folder_config, write_config
        from ckptio.sharding import write_shards
        from ckptio_safetensors.notes import encode_notes

        checkpoint = _with_ties(checkpoint, options)
        max_bytes = options["max_shard_size"]
        if max_bytes is None:
            _write_file(checkpoint, out.create(), encode_notes(checkpoint))
        else:
            # Beside a config, the names are those that transformers looks for.
            stem = "model" if folder_config(checkpoint) is not None else None
            checkpoint = write_config(checkpoint, out)
            notes = encode_notes(checkpoint)
            write_shards(checkpoint, out, max_bytes, notes, suffix=SUFFIX, write_shard=_write_file, stem=stem)

    def check(self, checkpoint: ckptio.Checkpoint, options: Mapping[str, Any]) -> list[Problem]:
        """Compare with the capabilities, and find names, ties, leaves and metadata that cannot be written."""
        from ckptio_safetensors.notes import FORMAT, encode_notes, note_problems

        checkpoint = _with_ties(checkpoint, options)
        problems = capability_problems(self.capabilities, checkpoint.specs.values())
        problems += [Problem(ascii(name), why) for name in checkpoint.names() if (why := _name_problem(name))]
        problems += note_problems(checkpoint)
        if not problems and options["max_shard_size"] is None:
            size = len(pack_header(checkpoint.specs.values(), FORMAT | encode_notes(checkpoint)))
            if size - LENGTH.size > LARGEST_HEADER:
                problems.append(Problem("", f"the header has more bytes than the format's {LARGEST_HEADER}"))
        return problems

    def match(self, probe: ckptio.Probe) -> Match:
        """Recognise a header by its beginning, an index by its shards, a directory by either name in it."""
        if probe.listing is not None:
            from ckptio.weights import match_folder

            return match_folder(probe.listing, SUFFIX)
        if probe.name.endswith(".json") or probe.head.startswith(b"{"):
            index = _match_index(probe)
            if index.confidence is not Confidence.NO:
                return index
        if len(probe.head) > LENGTH.size:
            (length,) = LENGTH.unpack(probe.head[: LENGTH.size])
            header = probe.head[LENGTH.size :]
            if length <= LARGEST_HEADER and (_ENTRY.match(header) or _is_empty(header[:length], length)):
                return Match(Confidence.SURE, "a length, and a header of safetensors")
        return Match(Confidence.NO, "no length and JSON header")


def _with_ties(checkpoint: ckptio.Checkpoint, options: Mapping[str, Any]) -> ckptio.Checkpoint:
    from ckptio.adapters import expand_aliases

    return expand_aliases(checkpoint) if options["ties"] == "full" else checkpoint


def _write_file(checkpoint: ckptio.Checkpoint, file: OutputFile, notes: Mapping[str, str]) -> None:
    from ckptio_safetensors.notes import FORMAT

    specs = in_order(checkpoint.specs.values())
    file.write(pack_header(specs, FORMAT | dict(notes)))
    for spec in specs:
        checkpoint.copy_to(spec.name, file)


def _name_problem(name: str) -> str | None:
    if name == METADATA:
        return "the name of the metadata in a header cannot be that of a tensor"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "the name has a lone surrogate: it is not text"
    return None


def _match_index(probe: ckptio.Probe) -> Match:
    from ckptio.weights import INDEX_SUFFIX
    from ckptio_safetensors.reading import is_index

    if is_index(probe.name, probe.head, probe.size):
        data = probe.read_at(0, _PROBED)
        if data.lstrip().startswith(b"{") and b'"weight_map"' in data and _SHARD.search(data):
            return Match(Confidence.SURE, "an index of safetensors files")
        if probe.name.endswith(SUFFIX + INDEX_SUFFIX):
            return Match(Confidence.NAME, "the name of an index")
    return Match(Confidence.NO, "no index of safetensors files")


def _is_empty(header: bytes, length: int) -> bool:
    return len(header) == length and header.rstrip() == b"{}"
