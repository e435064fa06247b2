"""Moved to `limba.data.vocabulary`; importable from here until version 0.3."""

import warnings

from limba.data.vocabulary.tokenizers import *  # noqa: F403

warnings.warn(
    "limba.data.tokenizers_vocabulary has moved; import from limba.data.vocabulary instead.",
    DeprecationWarning,
    stacklevel=2,
)
