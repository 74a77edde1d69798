"""The tokenizer that goes along: whose it is, where it goes, and what is said without one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from ckptio import Checkpoint, MemoryCheckpoint, OptionError
from ckptio.adapters import Adapter, Annotated, rename
from ckptio.cli import main
from ckptio.folder_plan import plan_folder
from ckptio.folders import model_folder
from ckptio.models import recognise
from hub import make_model, to_folder

MISSING = "no tokenizer: SOURCE has none of its files; pass --tokenizer DIR"


def folder_with(path: Path, **files: str) -> Path:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    make_model("gpt2").save_pretrained(tmp_path / "model")
    files = {"tokenizer.json": "own", "added_tokens.json": "own", "generation_config.json": '{"own": 1}'}
    return folder_with(tmp_path / "model", **files)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    files = {"tokenizer.json": "other", "vocab.json": "other", "generation_config.json": '{"other": 1}'}
    return folder_with(tmp_path / "other", **files, **{"config.json": "{}", "README.md": "not a tokenizer"})


def texts(folder: Path) -> dict[str, str]:
    weights = {"config.json", "model.safetensors"}
    return {path.name: path.read_text() for path in folder.iterdir() if path.name not in weights}


def test_the_tokenizer_of_another_folder_takes_the_place_of_the_own(
    tmp_path: Path, model: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--checkpoint_format=safetensors", "--layout=hf", f"--tokenizer={other}"]
    for target, source in ((tmp_path / "a", model), (tmp_path / "b", model / "model.safetensors")):
        assert main(["convert", str(source), f"{target}/", *flags]) == 0
        assert MISSING not in capsys.readouterr().out
        assert texts(target) == {
            "tokenizer.json": "other",
            "vocab.json": "other",
            "generation_config.json": '{"own": 1}',
        }


def test_a_directory_of_further_templates_is_named_on_either_side(tmp_path: Path, model: Path) -> None:
    further = model / "additional_chat_templates"
    folder_with(further, **{"tool.jinja": "x"})
    assert to_folder(model, tmp_path / "out").notes == (f"not copied, to be done by hand: {further}",)
    assert not (tmp_path / "out" / "additional_chat_templates").exists()
    old = folder_with(tmp_path / "out" / "additional_chat_templates", **{"old.jinja": "y"})
    further.rename(tmp_path / "away")
    report = to_folder(model, tmp_path / "out", overwrite=True)
    assert report.notes == ("kept in TARGET as it was: additional_chat_templates",)
    assert (old / "old.jinja").read_text() == "y"


def test_a_model_without_a_tokenizer_gets_one(tmp_path: Path, model: Path, other: Path) -> None:
    (model / "model.safetensors").rename(tmp_path / "bare.safetensors")
    for tokenizer, notes in ((None, (MISSING,)), (str(other), ()), (other, ())):
        target = tmp_path / "out"
        shutil.rmtree(target, ignore_errors=True)
        report = to_folder(tmp_path / "bare.safetensors", target, config={"n_head": 4}, tokenizer=tokenizer)
        assert report.notes == notes
        assert texts(target) == (
            {} if tokenizer is None else {"tokenizer.json": "other", "vocab.json": "other"}
        )


def test_what_is_no_tokenizer_is_told_before_anything_is_read(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = folder_with(tmp_path / "empty", **{"config.json": "{}"})
    (tmp_path / "damaged.safetensors").write_bytes(b"\xff" * 100)
    for given, words in (
        (tmp_path / "nowhere", "no such directory"),
        (model / "tokenizer.json", "no such directory"),
        (empty, "has none of added_tokens.json, chat_template.jinja, merges.txt, "),
    ):
        flags = ["--checkpoint_format=safetensors", "--source_format=safetensors", f"--tokenizer={given}"]
        assert main(["convert", str(tmp_path / "damaged.safetensors"), f"{tmp_path}/out/", *flags]) == 1
        err = capsys.readouterr().err
        assert err.startswith(f"error: --tokenizer {given}: {words}")
        assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("out.npz", "'npz' has no place for a tokenizer"),
        ("out.safetensors", "'safetensors' has no place for a tokenizer; a folder has: name TARGET/"),
        ("out.bin", "'llmc' has no place for a tokenizer"),
    ],
)
def test_a_target_without_a_place_for_it_is_refused(
    tmp_path: Path, model: Path, other: Path, target: str, words: str
) -> None:
    chosen = "llmc" if target.endswith(".bin") else None
    with pytest.raises(OptionError, match=words):
        ckptio.convert(model, tmp_path / target, checkpoint_format=chosen, tokenizer=other)
    assert not (tmp_path / target).exists()


def test_a_folder_that_is_no_model_has_no_place_for_it_either(tmp_path: Path, other: Path) -> None:
    ckptio.save({"a": np.ones(2, "<f4")}, tmp_path / "a.safetensors")
    with pytest.raises(OptionError, match="a folder without config.json has no tokenizer; pass --layout hf"):
        ckptio.convert(
            tmp_path / "a.safetensors", f"{tmp_path}/out/", checkpoint_format="safetensors", tokenizer=other
        )
    assert not (tmp_path / "out").exists()


def test_step_directories_do_not_take_it(
    tmp_path: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = folder_with(tmp_path / "checkpoint_step_000001", **{"trainer_state.json": "{}"})
    assert main(["convert", str(step), str(tmp_path / "out"), f"--tokenizer={other}"]) == 2
    assert "--tokenizer: it does not go with a step directory" in " ".join(capsys.readouterr().err.split())


# What a checkpoint makes of its own file


class Speaking(Adapter):
    """A checkpoint whose file has a tokenizer in it."""

    def companions(self) -> Mapping[str, bytes]:
        return {"tokenizer.json": b"made", "tokenizer_config.json": b"made"}


def plan(checkpoint: Checkpoint, source: Path, **options: Any) -> tuple[dict[str, str], tuple[str, ...]]:
    planned = plan_folder(
        checkpoint,
        model_folder(source),
        source.parent / "target",
        suffixes=(".safetensors",),
        recognised=recognise(checkpoint),
        cast_to=None,
        **options,
    )
    files = {path.name: path.read_text() for path in planned.companions}
    assert not files.keys() & planned.made.keys()
    files |= {name: content.decode() for name, content in planned.made.items()}
    return {name: text for name, text in files.items() if name != "generation_config.json"}, planned.notes


def test_what_a_checkpoint_makes_is_written_where_nothing_of_the_name_lies_beside_it(
    tmp_path: Path, model: Path, other: Path
) -> None:
    assert MemoryCheckpoint({}).companions() == {}
    with ckptio.open(model) as opened:
        made = rename(Annotated(Speaking(opened), leaves={}), {})
        both = {"tokenizer.json": "made", "tokenizer_config.json": "made"}
        assert plan(made, tmp_path / "a.gguf") == (both, ())
        beside = {"tokenizer.json": "own", "added_tokens.json": "own", "tokenizer_config.json": "made"}
        assert plan(made, model) == (beside, ())
        given = {"tokenizer.json": "other", "vocab.json": "other"}
        assert plan(made, tmp_path / "a.gguf", tokenizer=other) == (given, ())
        assert plan(opened, tmp_path / "a.gguf") == ({}, (MISSING,))


# A format that has room for a tokenizer


def make_tokenizer(folder: Path, special: str) -> list[str]:
    """Write a byte-level tokenizer of transformers; return its tokens by number."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokens = [*alphabet, special]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({text: i for i, text in enumerate(tokens)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([special])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": special}))
    return tokens


def tokens_in(path: Path) -> list[str] | None:
    gguf = pytest.importorskip("gguf")
    field = gguf.GGUFReader(path).get_field("tokenizer.ggml.tokens")
    return None if field is None else list(field.contents())


def test_a_gguf_gets_the_tokenizer_of_the_folder_or_the_one_that_is_asked_for(tmp_path: Path) -> None:
    make_model("gpt2", vocabulary=257).save_pretrained(tmp_path / "model")
    target = tmp_path / "a.gguf"

    def made(source: str, **options: Any) -> tuple[list[str] | None, tuple[str, ...]]:
        report = ckptio.convert(tmp_path / source, target, overwrite=True, **options)
        return tokens_in(target), report.notes

    usual, bare = "model/model.safetensors", "model/bare.safetensors"
    (tmp_path / bare).write_bytes((tmp_path / usual).read_bytes())
    assert made("model", layout="gguf") == (None, (MISSING,))
    own = make_tokenizer(tmp_path / "model", "<own>")
    other = make_tokenizer(tmp_path / "other", "<other>")
    assert made("model", layout="gguf") == (own, ())
    assert made(usual, layout="gguf") == (own, ())
    assert made(bare, layout="gguf", config={"n_head": 4}) == (None, (MISSING,))
    # Without the names of llama.cpp's tensors, it is no model of its.
    tokens, notes = made("model")
    assert tokens is None
    assert MISSING not in notes
    assert made("model", layout="gguf", tokenizer=tmp_path / "other") == (other, ())
    assert made(bare, layout="gguf", config={"n_head": 4}, tokenizer=tmp_path / "other") == (other, ())
    assert made("model", layout="gguf", options={"tokenizer": str(tmp_path / "other")}) == (other, ())
    with pytest.raises(OptionError, match="--tokenizer and -o tokenizer say the same; pass one of them"):
        made("model", tokenizer=tmp_path / "other", options={"tokenizer": str(tmp_path / "other")})


def test_a_gguf_that_has_its_tokenizer_keeps_it_without_a_word(tmp_path: Path) -> None:
    make_model("gpt2", vocabulary=257).save_pretrained(tmp_path / "model")
    own = make_tokenizer(tmp_path / "model", "<own>")
    ckptio.convert(tmp_path / "model", tmp_path / "a.gguf", layout="gguf")
    report = ckptio.convert(tmp_path / "a.gguf", tmp_path / "b.gguf", layout="gguf")
    assert (tokens_in(tmp_path / "b.gguf"), report.notes) == (own, ())
    # Back in a folder, the reader's files go along.
    report = to_folder(tmp_path / "a.gguf", tmp_path / "out")
    made = json.loads((tmp_path / "out/tokenizer.json").read_bytes())
    special = [each["content"] for each in made["added_tokens"]]
    assert {*made["model"]["vocab"], *special} == set(own)
    assert report.notes == ()
