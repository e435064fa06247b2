"""Sentences that are logged once, however many files and shards of a corpus they are true of."""

from __future__ import annotations

import logging
import threading

from limba.config import without_credentials

logger = logging.getLogger(__name__)
_LOCK = threading.Lock()
TOLD = set[str]()  # the kinds of which a sentence was logged


def say_once(kind: str, sentence: str) -> None:
    """Logs the first sentence of a kind: one for a thousand corpora in all their shards."""
    with _LOCK:
        if kind in TOLD:
            return
        TOLD.add(kind)
    logger.warning(without_credentials(sentence))
