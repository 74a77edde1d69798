"""Architectures of models and the layouts in which programs store them.

One table per architecture (``gpt2.py``, ``llama3.py``, ``qwen2.py``): a row for each canonical tensor with
its shape, and what each layout does with it. `apply_layout` brings a checkpoint into a layout,
`recognise` tells what a checkpoint is, and `normalise_config` gives its hyperparameters one spelling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptio.lazily import getter

if TYPE_CHECKING:
    from ckptio.models.config import config_problems, normalise_config, parse_config_value
    from ckptio.models.hf_config import assumed_for_hf, config_from_hf, config_to_hf, configured, retyped
    from ckptio.models.layouts import LayoutResult, apply_layout, in_layout
    from ckptio.models.llama3 import ffn_range
    from ckptio.models.matching import Recognised
    from ckptio.models.recognition import architecture, contradictions, known_layouts, recognise
    from ckptio.models.tables import Architecture, Dim, Row, dim_value

__all__ = [
    "Architecture",
    "Dim",
    "LayoutResult",
    "Recognised",
    "Row",
    "apply_layout",
    "architecture",
    "assumed_for_hf",
    "config_from_hf",
    "config_problems",
    "config_to_hf",
    "configured",
    "contradictions",
    "dim_value",
    "ffn_range",
    "in_layout",
    "known_layouts",
    "normalise_config",
    "parse_config_value",
    "recognise",
    "retyped",
]

_HOMES = ("config", "tables", "llama3", "matching", "recognition", "layouts", "hf_config")

__getattr__ = getter(__name__, __all__, _HOMES)
