"""Training objectives as seqio preprocessors: span corruption, UL2, language modeling, inputs with targets.

A new objective is a module here with two functions (`spans.py` shows both), and a line of `OBJECTIVES` in
`limba/config/data.py`, by which `choice.function_of` finds them. `token_blocks.py` has what most objectives need.

Part of `data/`: imports `config/`, never jax.
"""

from limba.data.objectives.choice import derive_lengths, of_one_sequence, with_objective
from limba.data.objectives.denoisers import ul2
from limba.data.objectives.diacritics import restore_diacritics
from limba.data.objectives.language_modeling import causal_lm, lm_adaptation, prefix_lm
from limba.data.objectives.masked_language_modeling import masked_lm, whole_word_masked_lm
from limba.data.objectives.spans import span_corruption
from limba.data.objectives.supervised import SUPERVISED, add_prefix
from limba.data.objectives.text_segments import long_inputs_in_segments
from limba.data.objectives.token_blocks import tokenize_documents
from limba.data.objectives.whole_words import whole_word_span_corruption

__all__ = [
    "SUPERVISED", "add_prefix", "causal_lm", "derive_lengths", "lm_adaptation", "long_inputs_in_segments", "masked_lm",
    "of_one_sequence", "prefix_lm", "restore_diacritics", "span_corruption", "tokenize_documents", "ul2",
    "whole_word_masked_lm", "whole_word_span_corruption", "with_objective",
]  # fmt: skip
