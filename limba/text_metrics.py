"""Moved to `limba.data.metrics`; importable from here until version 0.3."""

import warnings

from limba.data.metrics import *  # noqa: F403

warnings.warn("limba.text_metrics has moved; import from limba.data.metrics instead.", DeprecationWarning, stacklevel=2)
