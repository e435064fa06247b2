"""Moved to `limba.data.objectives`; importable from here until version 0.3."""

import warnings

from limba.data.objectives import SUPERVISED, add_prefix

__all__ = ["SUPERVISED", "add_prefix"]

warnings.warn(
    "limba.data.supervised has moved; import from limba.data.objectives instead.", DeprecationWarning, stacklevel=2
)
