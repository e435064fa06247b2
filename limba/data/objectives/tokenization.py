"""Documents to tokens, many documents at once: the first step of every objective."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence

import numpy as np
import sentencepiece

from limba.data.dataset import TOKENS, Dataset, preprocessor
from limba.data.objectives.token_blocks import Features
from limba.data.vocabulary.load import begin_id, first_byte
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary

DOCUMENTS_PER_BATCH = 32  # documents tokenized at once
Tokenize = Callable[[Sequence[bytes]], np.ndarray]  # from documents to all their tokens, int32 [n]


@preprocessor
def tokenize_documents(
    dataset: Dataset, output_features: Features, append_eos: bool = False, begins: bool = False
) -> Dataset:
    """Returns {"targets": int32 [n]}, the tokens of 32 documents in a row, of {"text"} or {"tokens"}, bytes.

    "tokens" are the ids of documents tokenized beforehand, as little-endian int32 bytes. As in t5, nothing separates
    documents. With `append_eos` each one ends with the end-of-sequence id, as causal language modeling needs it; with
    `begins`, for an encoder, it begins with that of <cls>, if the vocabulary has it.
    Empty documents give no token.
    """
    name, tokenize = tokenizer_of(dataset, output_features, append_eos, begins)
    batches = dataset.batch(DOCUMENTS_PER_BATCH)
    return batches.map(lambda batch: {"targets": tokenize([document[name] for document in batch])}, {"targets": TOKENS})


def tokenizer_of(
    dataset: Dataset, output_features: Features, append_eos: bool, begins: bool = False
) -> tuple[str, Tokenize]:
    """Returns the name of the documents' feature, and the function from many of them to all their tokens."""
    vocabulary = output_features["targets"].vocabulary
    first, last = begin_id(vocabulary) if begins else None, vocabulary.eos_id if append_eos else None
    begin, end = ([] if each is None else [each] for each in (first, last))
    return (
        ("tokens", _decoder(begin, end)) if "tokens" in dataset.spec else ("text", _tokenizer(vocabulary, begin, end))
    )


def _decoder(begin: Sequence[int], end: Sequence[int]) -> Tokenize:
    """Returns a function from strings of ids to all their ids, with `begin` and `end` around each document."""
    first, last = (np.array(each, "<i4").tobytes() for each in (begin, end))

    def decoded(documents: Sequence[bytes]) -> np.ndarray:
        ended = (first + document + last if document else document for document in documents)
        return np.frombuffer(b"".join(ended), "<i4").astype(np.int32)

    return decoded


def _tokenizer(vocabulary: Vocabulary, begin: Sequence[int], end: Sequence[int]) -> Tokenize:
    """Returns a function from texts to all their tokens, with `begin` and `end` around each document."""
    vectors, first, last = encoder(vocabulary), np.array(begin, np.int32), np.array(end, np.int32)

    def tokens(texts: Sequence[bytes]) -> np.ndarray:
        found = vectors(texts)
        if len(first) + len(last):
            found = [part for vector in found for part in ((first, vector, last) if len(vector) else (vector,))]
        return np.concatenate(found)

    return tokens


def encoder(vocabulary: Vocabulary) -> Callable[[Sequence[bytes]], list[np.ndarray]]:
    """Returns a function from texts to the tokens of each, int32 [n]."""
    if isinstance(vocabulary, ByteVocabulary):
        first = np.int32(first_byte(vocabulary))
        return lambda texts: [np.frombuffer(text, np.uint8) + first for text in texts]
    if not isinstance(vocabulary, SentencePieceVocabulary):
        return lambda texts: [np.asarray(vocabulary.encode(text.decode()), np.int32) for text in texts]
    encode = vocabulary.tokenizer.Encode

    def encoded(texts: Sequence[bytes]) -> list[np.ndarray]:
        if len(texts) == 1:
            return [encode(texts[0], return_type="numpy")]
        # All at once, so that the other shards wait for the interpreter only once.
        return encode(list(texts), thread_pool=_threads(), return_type="numpy")

    return encoded


@functools.cache
def _threads() -> sentencepiece.ThreadPool:
    """Returns threads for all shards' texts; without them each call would start and end one of its own."""
    return sentencepiece.ThreadPool(min(os.cpu_count() or 1, 16))
