"""The kit itself: sound formats pass it, and for each promise one that breaks just that is caught.

All contracts run once, in a process of their own, where the formats are installed: a fabricated
distribution on the path names them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ckptio.testing import FormatContract
from testing.faults import everything

HERE = Path(__file__).parent
FORMATS = everything()
PROMISES = {name for name in dir(FormatContract) if name.startswith("test_")}


@dataclass
class Outcome:
    """What became of the contract of one format: tests by name (without their parameters)."""

    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def install(folder: Path, distribution: str, points: dict[str, str]) -> None:
    """Make a distribution that names formats."""
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name} = {value}\n" for name, value in points.items()]
    (info / "entry_points.txt").write_text("[ckptio.formats.v1]\n" + "".join(lines))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("installed")
    points = {name: f"testing.faults:{name}" for name in FORMATS} | {
        name: f"testing.{name}" for name in FORMATS if name.endswith("_format")
    }
    install(folder, "faulty", points | {"claimed_twice": "one"})
    install(folder, "another", {"claimed_twice": "two"})
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", HERE / "contracts_of_faulty.py", "-q", f"--junitxml={report}"]
    environment = os.environ | {"PYTHONPATH": f"{folder}:{HERE.parent}"}
    done = subprocess.run(
        [*map(str, command), "-p", "no:cacheprovider", f"--basetemp={folder / 'temporary'}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return _read_report(report)


def _read_report(report: Path) -> dict[str, Outcome]:
    found: dict[str, Outcome] = defaultdict(Outcome)
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = found[case.attrib["classname"].rpartition(".Test_")[2]]
        name = case.attrib["name"].partition("[")[0]
        skipped, failure = case.find("skipped"), case.find("failure")
        assert case.find("error") is None
        if failure is not None:
            outcome.failed[name] = failure.text or ""
        elif skipped is not None:
            outcome.skipped[name] = skipped.attrib["message"]
        else:
            outcome.passed.add(name)
    return found


@pytest.mark.parametrize("name", [name for name, broken in FORMATS.items() if broken is None])
def test_a_sound_format_keeps_every_promise(name: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[name].failed == {}
    assert outcomes[name].passed | outcomes[name].skipped.keys() == PROMISES


@pytest.mark.parametrize("name", [name for name, broken in FORMATS.items() if broken is not None])
def test_a_faulty_format_breaks_what_it_is_meant_to_and_nothing_else(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    assert outcomes[name].failed.keys() == FORMATS[name]
    assert outcomes[name].passed


@pytest.mark.parametrize("name", ["claimed_twice", "not_installed"])
def test_a_format_that_is_not_one_installed_plugin_is_caught(name: str, outcomes: dict[str, Outcome]) -> None:
    assert "test_it_resolves_through_its_installed_entry_point" in outcomes[name].failed


def test_every_promise_is_broken_by_some_format() -> None:
    broken = {promise for promises in FORMATS.values() for promise in promises or ()}
    assert PROMISES - broken == {"test_it_resolves_through_its_installed_entry_point"}


def test_what_is_skipped_is_not_declared_and_the_reason_says_so(outcomes: dict[str, Outcome]) -> None:
    reasons = {reason for outcome in outcomes.values() for reason in outcome.skipped.values()}
    assert reasons
    for reason in reasons:
        assert re.match(r"\w+ (declares|does not declare) ", reason)


def test_a_failure_shows_the_values(outcomes: dict[str, Outcome]) -> None:
    """That is: pytest rewrites the assertions of the kit."""
    failure = outcomes["stores_ties_in_full"].failed["test_aliases_are_kept_as_declared"]
    assert "{} == {'tie': 'vector'}" in failure
