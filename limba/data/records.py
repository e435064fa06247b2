"""Moved to `limba.data.sources`; importable from here until version 0.3."""

import warnings

from limba.data.sources import ArrayRecordSource, TfdsSource

__all__ = ["ArrayRecordSource", "TfdsSource"]

warnings.warn("limba.data.records has moved; import from limba.data.sources instead.", DeprecationWarning, stacklevel=2)
