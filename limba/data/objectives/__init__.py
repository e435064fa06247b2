"""What a model learns from tokens, as seqio preprocessors: span corruption and the others.

Part of `data/`: imports `config/`, never jax.
"""

from limba.data.objectives.choose import derive_lengths, tokenize_documents
from limba.data.objectives.diacritics import restore_diacritics
from limba.data.objectives.language_modeling import causal_lm, lm_adaptation, prefix_lm
from limba.data.objectives.spans import span_corruption
from limba.data.objectives.supervised import SUPERVISED, add_prefix
from limba.data.objectives.ul2 import ul2 as ul2
from limba.data.objectives.whole_words import whole_word_span_corruption

__all__ = [
    "SUPERVISED",
    "add_prefix",
    "causal_lm",
    "derive_lengths",
    "lm_adaptation",
    "prefix_lm",
    "restore_diacritics",
    "span_corruption",
    "tokenize_documents",
    "ul2",
    "whole_word_span_corruption",
]
