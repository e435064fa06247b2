"""Moved to `limba.data.metrics`; importable from here until version 0.3."""

import warnings

from limba.data.metrics import accuracy, bleu, chrf, diacritics, error_rates, exact_match, rouge, word_f1

__all__ = ["accuracy", "bleu", "chrf", "diacritics", "error_rates", "exact_match", "rouge", "word_f1"]

warnings.warn("limba.text_metrics has moved; import from limba.data.metrics instead.", DeprecationWarning, stacklevel=2)
