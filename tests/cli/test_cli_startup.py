"""What a command may import: modules are asserted, never times."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from golden import golden

GPT2 = golden("llmc_gpt2/gpt2_L2H2C32V97T16_fp32.bin")
MODULES = """
import json, os, sys
from ckptio.cli import main
status = main(sys.argv[1:])
sys.stdout.flush()
print(json.dumps([status, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""
HEAVY = {"numpy", "ml_dtypes", "pluggy", "msgpack", "rich", "pydantic", "torch"}


def plugins(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("ckptio_")}


def imported(*argv: str) -> set[str]:
    """Return the top-level modules that a run of the command leaves imported."""
    ended = subprocess.run(
        [sys.executable, "-c", MODULES, *argv], capture_output=True, text=True, timeout=60, check=True
    )
    _, modules = json.loads(ended.stderr.splitlines()[-1])
    return set(modules)


@pytest.mark.parametrize(
    "argv", [(), ("--help",), ("convert", "--help"), ("inspect", "-h"), ("--version",)], ids=" ".join
)
def test_help_and_version_import_no_library_and_no_plugin(argv: tuple[str, ...]) -> None:
    found = imported(*argv)
    assert "typer" in found
    assert not found & HEAVY
    assert not plugins(found)


@pytest.mark.parametrize("argv", [("formats",), ("formats", "--json")], ids=" ".join)
def test_formats_imports_no_plugin(argv: tuple[str, ...]) -> None:
    found = imported(*argv)
    assert not found & {"msgpack", "rich", "torch"}
    assert not plugins(found)


def test_formats_with_a_name_imports_that_plugin_alone() -> None:
    assert plugins(imported("formats", "statedict")) == {"ckptio_statedict"}


def test_formats_with_check_imports_all() -> None:
    assert imported("formats", "--check") >= {"ckptio_llmc", "ckptio_msgpack", "ckptio_statedict"}


def test_inspect_with_a_format_imports_that_plugin_alone_and_no_heavy_library() -> None:
    found = imported("inspect", str(GPT2), "--checkpoint_format", "llmc")
    assert plugins(found) == {"ckptio_llmc"}
    assert not found & {"rich", "pydantic", "msgpack"}
