"""Moved to `limba.data.sources`; importable from here until version 0.3."""

import warnings

from limba.data.sources.array_record import *  # noqa: F403
from limba.data.sources.tfds import *  # noqa: F403

warnings.warn("limba.data.records has moved; import from limba.data.sources instead.", DeprecationWarning, stacklevel=2)
