"""Sentences that are logged once, however many files and shards of a corpus they are true of."""

from __future__ import annotations

import logging

from limba.config import without_credentials

logger = logging.getLogger(__name__)
_TOLD: dict[str, str] = {}  # kind -> the sentence of it that was logged


def say_once(kind: str, sentence: str) -> None:
    """Logs the first sentence of a kind: one for a thousand corpora in all their shards."""
    if _TOLD.setdefault(kind, sentence) is sentence:
        logger.warning(without_credentials(sentence))
