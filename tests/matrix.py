"""Every golden file to every target format, held against ``tests/data/matrix.json`` and outside judges.

The matrix says for each cell: ``exact``, ``exact`` with the ``config`` that it takes, ``same bytes``,
``refused`` with reasons that the message must have, or ``not a model``. What was written is judged by
flax's own ``msgpack_restore``, by the independent readers of this folder, and by the golden truths.
Run as a program it does all of them: ``python tests/matrix.py FOLDER``.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax.serialization import msgpack_restore

import ckptio
from golden import DATA
from independent import read_ckpt
from independent_llmc import read_llmc

Values = dict[str, tuple[str, tuple[int, ...], bytes]]
"""dtype, shape and little-endian bytes of each tensor by name; None for the value of a leaf."""

SUFFIXES = {"llmc": ".bin", "statedict": ".ckpt", "msgpack": ".msgpack"}
SHORT = {"bool": "bool", "bfloat16": "bf16", "float8_e4m3fn": "f8_e4m3fn", "float8_e5m2": "f8_e5m2"}
SHORT |= {
    f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)
}
SHORT |= {"complex64": "c64", "complex128": "c128"}


def matrix() -> dict[str, Any]:
    """Return the matrix: for each golden file its format and what each target makes of it."""
    found: dict[str, Any] = json.loads((DATA / "matrix.json").read_text())
    return found


def of_array(array: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], bytes]:
    """Describe an array."""
    return SHORT[array.dtype.name], array.shape, array.tobytes()


def truth_values(path: Path) -> Values:
    """Return what is in a golden llm.c file, by the truth beside it; bf16 is widened there, exactly."""
    name = path.name.replace("infinitrainheader", "masterlayout")
    truth_path = path.with_name("truth.npz") if path.parent.parent.name == "llmc_state" else None
    truth = np.load(truth_path or path.with_name(name.replace(".bin", ".truth.npz")))
    narrow = struct.unpack_from("<2i", path.read_bytes())[1] == 5
    found: Values = {}
    for name in truth.files:
        array = truth[name]
        if name.endswith(".attn.bias"):
            continue
        if narrow:
            bits = array.view(np.uint32)
            assert not (bits & 0xFFFF).any()
            found[name] = ("bf16", array.shape, (bits >> 16).astype("<u2").tobytes())
        else:
            found[name] = of_array(array)
    return found


def state_values(path: Path) -> Values:
    """Return what is in an llm.c model of a run, by this folder's own reader; its head is the embedding."""
    _, kind, stored = read_llmc(path)
    found = {name: (kind, shape, data) for name, (shape, data) in stored.items()}
    return found | {"lm_head.weight": found["transformer.wte.weight"]}


def ckpt_values(path: Path) -> Values:
    """Return what is in a CKPT file, by the independent reader."""
    return {name: (stored.kind, stored.shape, stored.data) for name, stored in read_ckpt(path).items()}


def flax_values(path: Path) -> tuple[Values, dict[str, Any]]:
    """Return the tensors, and the leaves, of a msgpack file as flax reads it."""
    tensors: Values = {}
    leaves: dict[str, Any] = {}

    def walk(value: Any, at: str) -> None:
        if isinstance(value, Mapping) and value:
            for key, item in value.items():
                walk(item, f"{at}/{key}" if at else key)
        elif isinstance(value, np.ndarray | np.generic):
            tensors[at] = of_array(np.asarray(value))
        else:
            leaves[at] = value

    walk(msgpack_restore(path.read_bytes()), "")
    return tensors, leaves


def source_values(path: Path, name: str) -> tuple[Values, dict[str, Any]]:
    """Return what a golden file holds, by judges that share no code with ckptio."""
    if name == "llmc":
        return (state_values(path) if "llmc_state" in path.parts else truth_values(path)), {}
    return (ckpt_values(path), {}) if name == "statedict" else flax_values(path)


def judge_exact(source: Path, name: str, target: Path, wanted: str, header: Path | None) -> None:
    """Assert that the target holds the very tensors and leaves of the source."""
    tensors, leaves = source_values(source, name)
    if wanted == "statedict":
        assert ckpt_values(target) == tensors
        with ckptio.open(target) as found:
            assert repr(sorted(found.leaves.items())) == repr(sorted(leaves.items()))
    elif wanted == "msgpack":
        found_tensors, found_leaves = flax_values(target)
        assert found_tensors == tensors
        assert repr(sorted(found_leaves.items())) == repr(sorted(leaves.items()))
    else:
        _, kind, stored = read_llmc(target)
        masks = {each for each in tensors if each.endswith(".attn.bias") and tensors[each][1][:2] == (1, 1)}
        for mask in masks:
            size = tensors[mask][1][-1]
            assert tensors[mask][2] == np.tril(np.ones((size, size), "<f4")).tobytes()
        expected = {each: value for each, value in tensors.items() if each not in masks}
        if "transformer.wpe.weight" in expected:
            assert expected.pop("lm_head.weight") == expected["transformer.wte.weight"]
        assert {each: (kind, *value) for each, value in stored.items()} == expected
        assert header is not None
        assert target.read_bytes()[:1024] == header.read_bytes()[:1024]


def try_cell(golden: Path, relative: str, wanted: str, folder: Path) -> str:
    """Do what one cell of the matrix says and judge it; return the outcome, AssertionError when wrong."""
    entry = matrix()[relative]
    cell, name, source = entry["targets"][wanted], entry["format"], golden / relative
    target = folder / f"target{SUFFIXES[wanted]}"
    outcome: str = cell["outcome"]
    if outcome in ("refused", "not a model"):
        _assert_refused(source, target, wanted, {}, cell)
        return outcome
    config = cell.get("config", {})
    for key in config:
        less = {k: v for k, v in config.items() if k != key}
        _assert_refused(source, target, wanted, less, {"reasons": [f"--config {key}="]})
    report = ckptio.convert(source, target, checkpoint_format=wanted, config=config)
    tensors = source_values(source, name)[0]
    assert {fate.name for fate in report.fates if fate.kind == "tensor"} == tensors.keys()
    if outcome == "same bytes":
        assert target.read_bytes() == source.read_bytes()
    else:
        header = golden / cell["header"] if "header" in cell else None
        judge_exact(source, name, target, wanted, header)
    if name == "llmc":
        back = folder / "back.bin"
        ckptio.convert(target, back, checkpoint_format="llmc")
        assert back.read_bytes() == source.read_bytes(), "there and back gives the same bytes"
    return f"{outcome} with --config {config}" if config else outcome


def _assert_refused(source: Path, target: Path, wanted: str, config: Any, cell: Any) -> None:
    with pytest.raises(ckptio.UnsupportedError) as caught:
        ckptio.convert(source, target, checkpoint_format=wanted, config=config)
    for reason in cell["reasons"]:
        assert reason in str(caught.value), f"{reason!r} is not in {caught.value}"
    if "count" in cell:
        assert len(caught.value.problems) == cell["count"]
    assert not list(target.parent.iterdir()), "something was left behind"


def main(golden: Path) -> int:
    """Try every cell; print what came of each, and how many of how many hold."""
    cells = [(relative, wanted) for relative, entry in matrix().items() for wanted in entry["targets"]]
    failed = 0
    for relative, wanted in cells:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                print(f"ok {relative} -> {wanted}: {try_cell(golden, relative, wanted, Path(scratch))}")
            except Exception as error:
                failed += 1
                print(f"FAILED {relative} -> {wanted}: {type(error).__name__}: {error}")
    print(f"{len(cells) - failed} of {len(cells)} cells hold, over {len(matrix())} files")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
