"""Documents to tokens, many documents at once: the first step of every objective."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import sentencepiece
import tensorflow as tf

from limba.data.objectives.token_blocks import Features
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary

DOCUMENTS_PER_BATCH = 32  # documents tokenized at once; a saved data position may hold their tokens


def tokenize_documents(
    dataset: tf.data.Dataset, output_features: Features, append_eos: bool = False
) -> tf.data.Dataset:
    """Returns {"targets": int32 [n]}, the tokens of 32 documents in a row, of {"text"} or {"tokens"}, strings.

    "tokens" are the ids of documents tokenized beforehand, as little-endian int32 bytes. As in t5, nothing separates
    documents. With `append_eos` each one ends with the end-of-sequence id, as causal language modeling needs it.
    Empty documents give no token.
    """
    name, tokenize = tokenizer_of(dataset, output_features, append_eos)
    return dataset.batch(DOCUMENTS_PER_BATCH).map(lambda batch: {"targets": tokenize(batch[name])})


def tokenizer_of(
    dataset: tf.data.Dataset, output_features: Features, append_eos: bool
) -> tuple[str, Callable[[tf.Tensor], tf.Tensor]]:
    """Returns the name of the documents' feature, and the function from many of them [n] to all their tokens [m]."""
    vocabulary = output_features["targets"].vocabulary
    end = vocabulary.eos_id if append_eos else None
    is_tokenized = "tokens" in cast(Mapping[str, tf.TensorSpec], dataset.element_spec)
    return ("tokens", _decoder(end)) if is_tokenized else ("text", _tokenizer(vocabulary, end))


def _decoder(end: int | None) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from strings of ids [n] to all their ids, int32 [m], with `end` after each document."""
    last = b"" if end is None else np.array(end, "<i4").tobytes()

    def decoded(documents: tf.Tensor) -> tf.Tensor:
        ended = tf.where(documents == "", documents, documents + last)
        return tf.io.decode_raw(tf.strings.reduce_join(ended), tf.int32, little_endian=True)

    return decoded


def _tokenizer(vocabulary: Vocabulary, end: int | None) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from texts [n] to all their tokens, int32 [m], with `end` after each document."""
    if isinstance(vocabulary, ByteVocabulary) and end is None:
        return lambda texts: vocabulary.encode_tf(tf.strings.reduce_join(texts))
    if not isinstance(vocabulary, SentencePieceVocabulary):

        def encoded(text: tf.Tensor) -> tf.Tensor:
            tokens = tf.cast(vocabulary.encode_tf(text), tf.int32)
            return tokens if end is None else tf.concat([tokens, tf.fill([tf.minimum(tf.size(tokens), 1)], end)], 0)

        return lambda texts: tf.map_fn(encoded, texts, fn_output_signature=_TOKENS).flat_values
    encode = vocabulary.tokenizer.Encode
    ending = np.array([] if end is None else [end], np.int32)

    def tokens(texts: np.ndarray) -> np.ndarray:
        # All at once, so that the other shards wait for the interpreter only once.
        vectors = encode(texts.tolist(), thread_pool=_threads(), return_type="numpy")
        if end is None:
            return np.concatenate(vectors)
        return np.concatenate([part for vector in vectors for part in ((vector, ending) if len(vector) else (vector,))])

    def in_graph(texts: tf.Tensor) -> tf.Tensor:
        # SentencePiece's own library is four times as fast as its TensorFlow op, and other shards can use the
        # interpreter meanwhile. One processor serves them all.
        result = tf.numpy_function(tokens, [texts], tf.int32, stateful=False)
        return tf.ensure_shape(result, [None])

    return in_graph


@functools.cache
def _threads() -> sentencepiece.ThreadPool:
    """Returns threads for all shards' texts; without them each call would start and end one of its own."""
    return sentencepiece.ThreadPool(min(os.cpu_count() or 1, 16))


_TOKENS = tf.RaggedTensorSpec([None], tf.int32, ragged_rank=0)
