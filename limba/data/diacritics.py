"""Moved to `limba.data.objectives`; importable from here until version 0.3."""

import warnings

from limba.data.objectives.diacritics import *  # noqa: F403

PLAIN = {"ł": "l", "đ": "d", "ı": "i"}  # now `limba.data.objectives.transliteration.plain`

warnings.warn(
    "limba.data.diacritics has moved; import from limba.data.objectives instead.", DeprecationWarning, stacklevel=2
)
