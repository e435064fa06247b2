"""Vocabularies: loading, training, reports on them, and the bytes of their pieces.

Part of `data/`: imports `config/`, never jax.
"""

from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.tokenizers import TokenizersVocabulary

__all__ = ["TokenizersVocabulary", "load_vocabulary"]
