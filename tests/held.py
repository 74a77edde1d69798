"""What of some tensors a format can hold, by its declared capabilities; the rest it must refuse by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptio
from ckptio import DType
from ckptio.registry import registry


def held(target: str, tensors: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the tensors that ``target`` can hold, having seen that it refuses the others by name."""
    capabilities = registry().load(target).capabilities
    kept = {
        name: array
        for name, array in tensors.items()
        if DType.of(np.asarray(array).dtype) in capabilities.dtypes
        and (capabilities.empty or np.size(array))
        and (capabilities.zero_dim or np.ndim(array))
    }
    others = {name: array for name, array in tensors.items() if name not in kept}
    if others:
        with pytest.raises(ckptio.UnsupportedError) as caught:
            ckptio.save(others, folder / "refused", checkpoint_format=target)
        assert {problem.where for problem in caught.value.problems} == others.keys()
        assert not (folder / "refused").exists()
    return kept
