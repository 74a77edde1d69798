"""The conformance kit: whether a format keeps every promise that ckptio makes of formats.

An author writes one class, and pytest does the rest::

    from ckptio.testing import FormatContract

    class TestFoo(FormatContract):
        format_name = "foo"

The kit tests what the format declares in its capabilities and skips the rest with the reason. It needs
pytest and nothing else: no plugin of pytest, no marker, no configuration.
"""

from __future__ import annotations

import pytest

# A failed assertion is to show its values; pytest rewrites modules only when told before their import.
pytest.register_assert_rewrite(
    *(
        f"ckptio.testing.{module}"
        for module in (
            "conduct",
            "damage",
            "harness",
            "keeping",
            "recognition",
            "refusals",
            "registration",
            "streaming",
            "values",
        )
    )
)

from ckptio.testing.contract import FormatContract  # noqa: E402
from ckptio.testing.harness import Sample, fingerprint, fingerprint_of  # noqa: E402

__all__ = ["FormatContract", "Sample", "fingerprint", "fingerprint_of"]
