"""The attributes of an OrderedDict as JSON: torch's ``_metadata``, and whatever else is plain."""

from __future__ import annotations

from typing import Any

from ckptio_torch.records import Map
from ckptio_torch.source import Budget

__all__ = ["NOT_JSON", "as_json"]

NOT_JSON = object()
_DEEPEST = 32


def as_json(value: Any, budget: Budget, depth: int = 0) -> Any:
    """Return a record as a JSON value without floats, or `NOT_JSON` when it is none.

    ``_metadata`` maps the name of each module to ``{"version": 1}``, or what else the module added.
    """
    budget.spend(100)
    if value is None or isinstance(value, bool | int | str):
        return value
    if depth > _DEEPEST:
        return NOT_JSON
    if isinstance(value, list):
        items = [as_json(item, budget, depth + 1) for item in value]
        return NOT_JSON if any(item is NOT_JSON for item in items) else items
    if not isinstance(value, Map) or value.attributes is not None:
        return NOT_JSON
    found = {}
    for key, item in zip(value.items[::2], value.items[1::2], strict=True):
        plain = as_json(item, budget, depth + 1)
        if not isinstance(key, str) or plain is NOT_JSON:
            return NOT_JSON
        found[key] = plain
    return found
