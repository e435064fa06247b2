"""Vocabularies: loading, training, reports on them, and the bytes of their pieces.

Part of `data/`: imports `config/`, never jax.
"""

from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary

__all__ = ["ByteVocabulary", "SentencePieceVocabulary", "TokenizersVocabulary", "Vocabulary", "load_vocabulary"]
