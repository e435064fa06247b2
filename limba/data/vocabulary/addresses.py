"""Where a vocabulary comes from: its address, the copy that a run keeps, and a name for its content."""

from __future__ import annotations

import hashlib

from limba.data.vocabulary.files import place_of
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.shifted import StreamVocabulary
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.vocabularies import SentencePieceVocabulary, Vocabulary, plain


def address_of(vocabulary: object) -> str | None:
    """Returns the path or address of a vocabulary's file or folder; None for one without a file, such as bytes."""
    if isinstance(vocabulary, StreamVocabulary | PublishedVocabulary):
        return vocabulary.address
    if isinstance(vocabulary, TokenizersVocabulary):
        return vocabulary.path
    return vocabulary.sentencepiece_model_file if isinstance(vocabulary, SentencePieceVocabulary) else None


def of_run(vocabulary: Vocabulary, directory: str | None) -> Vocabulary:
    """Returns a task's vocabulary as it is read: from the copy in a run's `directory` if there is one.

    For seqio's own vocabulary at an address it is ours, which can read addresses.
    """
    ours = plain(vocabulary)
    if isinstance(ours, StreamVocabulary):
        return ours
    address = address_of(ours)
    if address is None:
        return ours if isinstance(ours, TokenizersVocabulary) else vocabulary
    path = place_of(address, directory)
    has_copy = path != address
    if isinstance(ours, TokenizersVocabulary):
        return TokenizersVocabulary(path) if has_copy else ours
    if type(ours) is SentencePieceVocabulary and (has_copy or "://" in address):
        return ours.at(path)
    return vocabulary


def content_name(vocabulary: Vocabulary) -> str:
    """Returns a name that depends on a vocabulary's content, not on its path or added sentinels."""
    if isinstance(vocabulary, StreamVocabulary):
        around = f"{vocabulary.offset} {vocabulary.begins} {vocabulary.ends} {vocabulary.start} {vocabulary.mask_id}"
        return f"{content_name(vocabulary.published)} {around}"
    if isinstance(vocabulary, SentencePieceVocabulary):
        model = hashlib.blake2b(vocabulary.tokenizer.serialized_model_proto(), digest_size=16).hexdigest()
        return f"sentencepiece {model}"
    if isinstance(vocabulary, TokenizersVocabulary):
        return f"tokenizers {hashlib.blake2b(vocabulary.tokenizer.to_str().encode(), digest_size=16).hexdigest()}"
    return f"{type(vocabulary).__name__} {vocabulary.vocab_size}"
