"""The tokenizer that goes along with a model: as files of its folder, or by an option of a format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptio.errors import OptionError
from ckptio.format import Format

__all__ = [
    "FURTHER_TEMPLATES",
    "NO_TOKENIZER",
    "TOKENIZERS",
    "TOKENIZER_OPTION",
    "asked_tokenizer",
    "lacks_tokenizer",
    "option_with_tokenizer",
    "tokenizer_files",
]

TOKENIZERS = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
    }
)
FURTHER_TEMPLATES = "additional_chat_templates"
"""The directory in which transformers keeps chat templates beside the usual one; it is not copied."""
TOKENIZER_OPTION = "tokenizer"
"""The option by which a format that has room for a tokenizer is told the folder of its files."""
NO_TOKENIZER = "no tokenizer: SOURCE has none of its files; pass --tokenizer DIR"
_TOKENS = "tokenizer.ggml.tokens"
"""llama.cpp's key of a tokenizer's tokens; metadata keep it in any format."""


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of a tokenizer in a model's folder, by name."""
    return sorted(path for path in folder.iterdir() if path.name in TOKENIZERS and path.is_file())


def asked_tokenizer(folder: Path) -> Path:
    """Return ``folder``, given as ``--tokenizer``; `OptionError` when there is no tokenizer in it."""
    if not folder.is_dir():
        raise OptionError(f"--tokenizer {folder}: no such directory; name the folder that has tokenizer.json")
    if not tokenizer_files(folder):
        raise OptionError(f"--tokenizer {folder}: has none of {', '.join(sorted(TOKENIZERS))}")
    return folder


def option_with_tokenizer(
    chosen: Format,
    options: Mapping[str, Any] | None,
    asked: Path | None,
    *,
    layout: str | None,
    own: Path | None,
) -> dict[str, Any]:
    """Return the writer's options with the folder of the tokenizer, where the format has an option for it.

    ``asked`` is the folder of ``--tokenizer``. Without it, a model in the layout that such files are run
    in gets the source's ``own`` folder where that has a tokenizer.
    """
    given = dict(options or {})
    if all(option.name != TOKENIZER_OPTION for option in chosen.write_options):
        return given
    if asked is not None:
        if TOKENIZER_OPTION in given:
            raise OptionError(f"--tokenizer and -o {TOKENIZER_OPTION} say the same; pass one of them")
        given[TOKENIZER_OPTION] = str(asked)
    elif _is_run(chosen, layout) and own is not None and tokenizer_files(own):
        given.setdefault(TOKENIZER_OPTION, str(own))
    return given


def lacks_tokenizer(
    chosen: Format, options: Mapping[str, Any], layout: str | None, metadata: Mapping[str, Any]
) -> bool:
    """Return whether a model to be run comes to have no tokenizer though its file has room for one."""
    has_room = TOKENIZER_OPTION in options and options[TOKENIZER_OPTION] is None
    return has_room and _is_run(chosen, layout) and _TOKENS not in metadata


def _is_run(chosen: Format, layout: str | None) -> bool:
    return layout is not None and layout == chosen.capabilities.runs_layout
