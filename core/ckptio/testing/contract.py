"""`FormatContract`: every promise in one class; the modules beside this one hold a few each."""

from __future__ import annotations

from ckptio.testing.conduct import ConductPromises
from ckptio.testing.damage import DamagePromises
from ckptio.testing.keeping import KeepingPromises
from ckptio.testing.recognition import RecognitionPromises
from ckptio.testing.refusals import RefusalPromises
from ckptio.testing.registration import RegistrationPromises
from ckptio.testing.streaming import StreamingPromises
from ckptio.testing.values import ValuePromises

__all__ = ["FormatContract"]


class FormatContract(
    RegistrationPromises,
    ValuePromises,
    KeepingPromises,
    RefusalPromises,
    StreamingPromises,
    RecognitionPromises,
    DamagePromises,
    ConductPromises,
):
    """What every format promises; derive a class ``TestFoo`` and set ``format_name``.

    Override ``make_checkpoint(dtype)`` when the format takes only certain names or shapes, and
    ``samples()`` to hold the reader against files of the real program.
    """
