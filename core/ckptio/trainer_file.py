"""``trainer_state.json``, in which a trainer says beside a model where it stands, and what model it is.

Two older kinds of the file are read too, which are no JSON: InfiniTrain's (commit b24d92f; no comma after
``vocab_size``) and its first stage's (a bare ``inf``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptio.adapters import Annotated
from ckptio.checkpoint import Checkpoint
from ckptio.errors import CkptError, CorruptCheckpointError
from ckptio.files import read_whole
from ckptio.jsontext import parse_object
from ckptio.models import normalise_config, recognise

__all__ = ["STATE_FILE", "believe", "config_beside", "read_document"]

STATE_FILE = "trainer_state.json"

_MODEL = "model"
"""The name of the model's file in a step directory, before its suffix."""
_SAID = ("n_layer", "n_head", "n_kv_head", "n_embd", "vocab_size")
"""The hyperparameters that InfiniTrain writes, each a key of its own."""
_NO_COMMA = re.compile(rb'([^\s,{\[:])([ \t]*\r?\n[ \t]*"[^"\n]*"[ \t]*:)')
_BARE = re.compile(rb"(:[ \t]*)(-?)(inf|nan)(?:inity)?(?=[ \t]*[,\r\n}])", re.IGNORECASE)


def config_beside(model: Path) -> dict[str, Any]:
    """Return the hyperparameters that the trainer state beside a model's file says; none where it is no such.

    They need not be true: started from a model file of llm.c, InfiniTrain writes those of its defaults.
    """
    path = model.with_name(STATE_FILE)
    if model.stem != _MODEL or not path.is_file():
        return {}
    try:
        document = read_document(path)
        config = document.get("config")
        return normalise_config(config if isinstance(config, Mapping) else _infinitrain(document))
    except (CkptError, OSError):
        return {}


def _infinitrain(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: document[key] for key in _SAID if type(document.get(key)) is int}


def believe(
    checkpoint: Checkpoint, beside: Mapping[str, Any]
) -> tuple[Checkpoint, tuple[str, ...], str | None]:
    """Add hyperparameters that lie beside a model to its config, if its tensors have the sizes that they say.

    Returns the checkpoint, a note of what no tensor had said, and why they are not believed.
    """
    config = normalise_config(checkpoint.metadata.get("config") or {})
    said = {key: value for key, value in beside.items() if key not in config}
    found = recognise(checkpoint) if said else None
    if found is None:
        return checkpoint, (), None
    if "n_qkv" not in found.sizes:
        # InfiniTrain writes it of a GPT-2 too, which has none.
        said.pop("n_kv_head", None)
    sizes = found.sizes
    wrong = sorted(f"{key} {said[key]}" for key in said.keys() & sizes.keys() if said[key] != sizes[key])
    if wrong:
        return checkpoint, (), f"{STATE_FILE} is not believed: by it the model has {', '.join(wrong)}"
    told = ", ".join(f"{key}={value}" for key, value in said.items() if key not in sizes)
    completed = Annotated(checkpoint, metadata={**checkpoint.metadata, "config": {**config, **said}})
    return completed, (f"config: {told} by {STATE_FILE}",) if told else (), None


def read_document(path: Path) -> dict[str, Any]:
    """Return the object in a ``trainer_state.json``, InfiniTrain's too.

    Raises OSError, `UnsupportedError` for a pipe, and `CorruptCheckpointError` with the offset for what is
    no such file.
    """
    data = read_whole(path, "trainer state")
    try:
        return parse_object(data, "the trainer state", path=path)
    except CorruptCheckpointError:
        mended = _BARE.sub(_tagged, _NO_COMMA.sub(rb"\1,\2", data))
        if mended == data:
            raise
        try:
            return parse_object(mended, "the trainer state", path=path)
        except CorruptCheckpointError:
            pass
        raise


def _tagged(found: re.Match[bytes]) -> bytes:
    sign = found[2] if found[3].lower() == b"inf" else b""
    return found[1] + json.dumps({"$float": (sign + found[3].lower()).decode()}).encode()
