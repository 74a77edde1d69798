"""Every shipped format keeps every promise of the kit that strangers' formats are held to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ckptio.testing import FormatContract


class TestLlmc(FormatContract):
    format_name = "llmc"


class TestMsgpack(FormatContract):
    format_name = "msgpack"


class TestSafetensorsInShards(FormatContract):
    format_name = "safetensors"
    options: ClassVar[Mapping[str, Any]] = {"max_shard_size": "150"}


class TestStatedict(FormatContract):
    format_name = "statedict"


class TestMsgpackInChunks(FormatContract):
    format_name = "msgpack"
    options: ClassVar[Mapping[str, Any]] = {"chunk_bytes": 100_000}


class TestNpz(FormatContract):
    format_name = "npz"


class TestSafetensors(FormatContract):
    format_name = "safetensors"


class TestTorch(FormatContract):
    format_name = "torch"
