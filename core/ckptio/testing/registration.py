"""Promises about the plugin: it is found, it comes in quietly, and what it declares makes sense."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import ckptio
from ckptio import Capabilities, Dependency, DType, Format, Option
from ckptio.format import parse_options
from ckptio.models import known_layouts
from ckptio.registry import registry
from ckptio.testing.harness import Harness

__all__ = ["RegistrationPromises"]

_LOAD = """
import sys
import ckptio.conversion, msgpack  # all that ckptio itself needs
before = {name.partition(".")[0] for name in sys.modules}
from ckptio.registry import registry
registry().load(sys.argv[1])
after = {name.partition(".")[0] for name in sys.modules}
with open(sys.argv[2], "w") as file:
    file.write("\\n".join(after - before))
"""
_HEAD = 4 << 10
"""Bytes of a file that are compared with the declared magic."""


class RegistrationPromises(Harness):
    """The format is an installed plugin like any other."""

    def test_it_resolves_through_its_installed_entry_point(self) -> None:
        infos = [info for info in ckptio.formats() if info.name == self.format_name]
        assert infos, f"no entry point {self.format_name!r} in the group ckptio.formats.v1; is it installed?"
        assert [info.problem for info in infos] == [None]
        assert registry().load(self.format_name).name == self.format_name

    def test_importing_it_is_silent_and_light(self, tmp_path: Path) -> None:
        """Detection imports every plugin; so a library is imported where a file is opened or written."""
        listed = tmp_path / "modules"
        command = [sys.executable, "-c", _LOAD, self.format_name, str(listed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
        (own,) = {info.distribution for info in ckptio.formats() if info.name == self.format_name}
        owners = packages_distributions()
        foreign = {
            name
            for name in set(listed.read_text().split()) - sys.stdlib_module_names
            # What no distribution owns is the author's own, installed editable.
            if own not in owners.get(name, [own])
        }
        assert not foreign, "import these where they are used, not when the plugin is loaded"

    def test_its_declarations_are_well_formed(self) -> None:
        found = self.format
        assert re.fullmatch(r"[a-z][a-z0-9_.-]*", found.name)
        assert found.summary.strip() == found.summary != ""
        assert "\n" not in found.summary
        for suffix in found.suffixes:
            assert re.fullmatch(r"\.[^/\s]+", suffix)
        for magic in found.magic:
            assert isinstance(magic, bytes)
            assert 0 < len(magic) <= _HEAD
        self._check_capabilities(found.capabilities)
        writes = type(found).write is not Format.write
        assert found.capabilities.writes == writes, "`writes` and the method `write` do not agree"
        for options in (found.read_options, found.write_options):
            _check_options(options, found.name)

    def _check_capabilities(self, can: Capabilities) -> None:
        assert isinstance(can, Capabilities)
        assert can.dtypes
        assert all(isinstance(dtype, DType) for dtype in can.dtypes)
        assert can.holds in ("any", "model")
        assert {can.layout, can.runs_layout} <= {None, *known_layouts()}
        assert can.layout is None or can.runs_layout is None
        flags = (can.aliases, can.leaves, can.metadata, can.nesting)
        assert {type(flag) for flag in (*flags, can.zero_dim, can.empty, can.shards, can.writes)} == {bool}
        assert can.max_tensor_bytes is None or can.max_tensor_bytes > 0
        needed = can.dependency
        assert needed is None or (isinstance(needed, Dependency) and needed.module and needed.install)


def _check_options(options: Iterable[Option], owner: str) -> None:
    names = [option.name for option in options]
    assert len(set(names)) == len(names)
    for option in options:
        assert isinstance(option, Option)
        assert option.name.isidentifier()
        assert option.help.strip()
        assert option.default is None or not option.choices or option.default in option.choices
        for choice in option.choices:
            # A value as the command line gives it: text.
            given = {option.name: str(choice)}
            assert parse_options([option], given, owner=owner, flag="-o") == {option.name: choice}
