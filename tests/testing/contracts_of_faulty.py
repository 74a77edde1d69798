"""One contract for each of the formats in ``faults``; ``test_kit.py`` has them run and judges.

What takes long is left out for a format that is not meant to break it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from ckptio.testing import FormatContract, Sample, fingerprint
from testing.faults import everything
from testing.sound_formats import LENGTH

SLOW = {
    "test_a_round_trip_is_bit_exact",
    "test_an_undeclared_dtype_is_refused",
    "test_files_of_other_shipped_formats_are_not_claimed",
    "test_importing_it_is_silent_and_light",
    "test_writing_and_streaming_stay_within_a_memory_bound",
    "test_a_cut_file_is_refused_or_read_right",
    "test_a_flipped_bit_is_refused_or_read_right",
}


class _WithSamples(FormatContract):
    """A file made by hand, byte by byte, is the truth from outside."""

    @pytest.fixture(autouse=True)
    def _make_sample(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        header = {"tensors": {"x": ["f32", [2]]}, "aliases": {}, "leaves": {}, "metadata": {}}
        text = json.dumps(header).encode()
        self.path = tmp_path_factory.mktemp("sample") / "file"
        first_line = f"{self.format_name}\n".encode()
        self.path.write_bytes(first_line + LENGTH.pack(len(text)) + text + bytes.fromhex("0000803f 00000040"))

    def samples(self) -> Iterator[Sample]:
        yield Sample(self.path, {"x": fingerprint(np.array([1, 2], np.float32))})


def _contract(name: str, broken: frozenset[str] | None) -> type:
    left_out = dict.fromkeys(SLOW - broken) if broken is not None else {}
    return type(f"Test_{name}", (_WithSamples,), {"format_name": name, **left_out})


globals().update({f"Test_{name}": _contract(name, broken) for name, broken in everything().items()})


class Test_claimed_twice(FormatContract):  # noqa: N801
    format_name = "claimed_twice"


class Test_not_installed(FormatContract):  # noqa: N801
    format_name = "not_installed"
