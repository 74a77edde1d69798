"""The states of the random generators that a training program uses: python's, numpy's, torch's."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ckptio.errors import CkptError, CorruptCheckpointError
from ckptio.training.notes import Notes

__all__ = ["capture_random", "restore_random"]


def capture_random() -> dict[str, Any]:
    """Return the states of the global generators as plain values; torch's only where it is imported."""
    version, internal, gauss = random.getstate()
    legacy = dict(np.random.get_state(legacy=False))
    found: dict[str, Any] = {
        "python": [version, np.array(internal, "<u4").tobytes(), gauss],
        "numpy": {**legacy, "state": {key: _plain(value) for key, value in legacy["state"].items()}},
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.get_rng_state().numpy().tobytes()
        if torch.cuda.is_initialized():
            found["torch_cuda"] = [each.cpu().numpy().tobytes() for each in torch.cuda.get_rng_state_all()]
    return found


def restore_random(states: Mapping[str, Any], say: Notes) -> None:
    """Put the global generators back to captured states; ``say`` hears which could not be.

    Raises `CorruptCheckpointError` for what is no captured state.
    """
    torch = sys.modules.get("torch")
    try:
        if "python" in states:
            version, internal, gauss = states["python"]
            random.setstate((version, tuple(np.frombuffer(internal, "<u4").tolist()), gauss))
        if "numpy" in states:
            legacy = states["numpy"]
            inner = {key: _array(value) for key, value in legacy["state"].items()}
            np.random.set_state({**legacy, "state": inner})
        if torch is not None and "torch" in states:
            torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))
    except CkptError:
        raise
    except Exception as error:
        raise CorruptCheckpointError(f"no state of a random generator: {error}") from None
    if "torch" in states and torch is None:
        say("the random generator of torch was not restored: torch is not imported")
    if torch is not None and "torch_cuda" in states:
        _restore_cuda(states["torch_cuda"], torch, say)


def _restore_cuda(states: list[bytes], torch: Any, say: Notes) -> None:
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices != len(states):
        say(f"{len(states)} random generators of CUDA were saved, {devices} are here: they were not restored")
        return
    torch.cuda.set_rng_state_all([torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in states])


def _plain(value: Any) -> Any:
    return value.astype("<u4").tobytes() if isinstance(value, np.ndarray) else value


def _array(value: Any) -> Any:
    return np.frombuffer(value, "<u4").astype(np.uint32) if isinstance(value, bytes) else value
