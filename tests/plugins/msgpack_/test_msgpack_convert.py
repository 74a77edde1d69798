"""The format among others: what goes through ``ckptio.convert`` and ``ckptio.save``."""

from __future__ import annotations

from pathlib import Path

import flax.serialization
import numpy as np

import ckptio
from golden import golden


def test_a_flax_file_becomes_a_flax_file_without_a_sidecar(tmp_path: Path) -> None:
    source = golden("flax/mixed_msgpack_serialize.msgpack")
    ckptio.convert(source, tmp_path / "copy.msgpack")
    assert (tmp_path / "copy.msgpack").read_bytes() == source.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["copy.msgpack"]


def test_a_statedict_becomes_nested_nowhere_and_comes_back(tmp_path: Path) -> None:
    source = golden("infinitrain/runs/gpt2_adam/ckpt/checkpoint_step_000002/model.ckpt")
    ckptio.convert(source, tmp_path / "model.msgpack")
    restored = flax.serialization.msgpack_restore((tmp_path / "model.msgpack").read_bytes())
    with ckptio.open(source) as checkpoint:
        assert set(restored) == set(checkpoint.specs)
        for name, array in restored.items():
            assert array.tobytes() == checkpoint.read(name).tobytes()


def test_ties_are_stored_in_full_and_come_back_as_ties(tmp_path: Path) -> None:
    path = tmp_path / "tied.msgpack"
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    ckptio.save({"embed/w": weight}, path, aliases={"head/w": "embed/w"}, leaves={"embed/step": 3})
    tree = flax.serialization.msgpack_restore(path.read_bytes())
    assert tree["embed"]["step"] == 3
    assert tree["head"]["w"].tobytes() == weight.tobytes()
    with ckptio.open(path) as checkpoint:
        assert checkpoint.aliases == {"head/w": "embed/w"}


def test_the_chunk_size_is_an_option(tmp_path: Path) -> None:
    path = tmp_path / "chunks.msgpack"
    ckptio.save({"w": np.arange(100)}, path, options={"chunk_bytes": "256"})
    with ckptio.open(path) as checkpoint:
        assert [span.length for span in checkpoint.spans("w") or ()] == [256, 256, 256, 32]
        assert checkpoint.read("w").tolist() == list(range(100))
