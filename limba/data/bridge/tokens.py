"""seqio's tokenization in a graph of TensorFlow, by our own encoder: the same ids, for many documents at once.

TensorFlow Text makes a quarter of the tokens per second that the SentencePiece library makes on batches.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from limba.data.bridge.graph import TRACING
from limba.data.vocabulary.spelling import encoder
from limba.data.vocabulary.vocabularies import ByteVocabulary, Vocabulary, plain

if TYPE_CHECKING:
    import tensorflow as tf

DOCUMENTS_A_BLOCK = 32  # as our own preprocessor tokenizes them


def by_our_encoder(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a preprocessor with the result of `step` if it is seqio's tokenization; any other step as it is."""
    import seqio

    function = step.func if isinstance(step, functools.partial) else step
    if function is seqio.preprocessors.tokenize:
        ours = tokenize
    elif function is seqio.preprocessors.tokenize_and_append_eos:
        ours = tokenize_and_append_eos
    else:
        return step
    if isinstance(step, functools.partial):
        return functools.partial(ours, *step.args, **step.keywords)
    return ours


@contextlib.contextmanager
def noticed_ignore_errors() -> Iterator[list[tf.data.Dataset]]:
    """Yields a list of the data sets whose errors are ignored by tf.data's `ignore_errors` from here on."""
    import tensorflow as tf

    noticed: list[tf.data.Dataset] = []
    of_tensorflow: Any = tf.data.Dataset

    def ignore_errors(dataset: tf.data.Dataset, *arguments: Any, **choices: Any) -> tf.data.Dataset:
        noticed.append(dataset)
        return as_written(dataset, *arguments, **choices)

    with TRACING:
        as_written = of_tensorflow.ignore_errors
        of_tensorflow.ignore_errors = functools.wraps(as_written)(ignore_errors)
        try:
            yield noticed
        finally:
            of_tensorflow.ignore_errors = as_written


def tokenize(
    dataset: tf.data.Dataset,
    output_features: Mapping[str, Any],
    copy_pretokenized: bool = True,
    with_eos: bool = False,
) -> tf.data.Dataset:
    """Returns what `seqio.preprocessors.tokenize` returns, whose arguments these are."""
    import seqio
    import tensorflow as tf

    encoders = _encoders(dataset.element_spec, output_features)
    if encoders is None:
        return seqio.preprocessors.tokenize(dataset, output_features, copy_pretokenized, with_eos)
    ends: dict[str, list[int]] = {}
    for name in encoders:
        feature = output_features[name]
        ends[name] = [feature.vocabulary.eos_id] if with_eos and feature.add_eos else []

    def of_block(block: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        features = dict[str, Any]()
        for name, value in block.items():
            if name not in encoders:
                features[name] = value
                continue
            if copy_pretokenized:
                features[f"{name}_pretokenized"] = value
            ids = functools.partial(_ids_of, encoders[name], np.array(ends[name], np.int32))
            # Declared stateless, so that tf.data can save and restore the iterator.
            features[name] = tf.numpy_function(ids, [value], tf.string, stateful=False)
            features[name] = tf.ensure_shape(features[name], [None])
        return features

    def of_document(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        decoded = {name: tf.io.decode_raw(example[name], tf.int32) for name in encoders}
        return {**example, **decoded}

    blocks = dataset.batch(DOCUMENTS_A_BLOCK).map(of_block)
    # `unbatch` crashes on texts that Python has made.
    documents = blocks.flat_map(tf.data.Dataset.from_tensor_slices)  # pyright: ignore[reportArgumentType] a dictionary
    tokenized = documents.map(of_document)
    if tf.executing_eagerly() and int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        # Preprocessors may ask for it, and blocks have lost it.
        return tokenized.apply(tf.data.experimental.assert_cardinality(dataset.cardinality()))
    return tokenized


def tokenize_and_append_eos(
    dataset: tf.data.Dataset, output_features: Mapping[str, Any], copy_pretokenized: bool = True
) -> tf.data.Dataset:
    """Returns what `seqio.preprocessors.tokenize_and_append_eos` returns, whose arguments these are."""
    return tokenize(dataset, output_features, copy_pretokenized, with_eos=True)


def _encoders(spec: Any, output_features: Mapping[str, Any]) -> dict[str, Callable] | None:
    """Returns the encoder of each feature that is tokenized; None where only seqio can tokenize this data set.

    That is where documents have no fixed shape, so that a block of them is not a tensor, where a text is one of several
    in a document, and where a vocabulary is another library's. Bytes are ids in TensorFlow's graph as quickly.
    """
    import tensorflow as tf

    if not isinstance(spec, Mapping) or not all(_has_fixed_shape(tensor_spec) for tensor_spec in spec.values()):
        return None
    encoders = dict[str, Callable]()
    for name in spec:
        if name not in output_features:
            continue
        vocabulary = plain(output_features[name].vocabulary)
        is_ours = vocabulary is not output_features[name].vocabulary and isinstance(vocabulary, Vocabulary)
        is_text = spec[name].dtype == tf.string and spec[name].shape.rank == 0
        if not is_ours or not is_text or isinstance(vocabulary, ByteVocabulary):
            return None
        encoders[name] = encoder(vocabulary)
    return encoders or None


def _has_fixed_shape(spec: Any) -> bool:
    import tensorflow as tf

    is_content = isinstance(spec, tf.TensorSpec) and spec.dtype not in (tf.variant, tf.resource)
    return is_content and spec.shape.is_fully_defined()


def _ids_of(encode: Callable[[list[bytes]], list[np.ndarray]], end: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Returns the ids of each text, and `end` after them, as the bytes of a vector of int32: [texts]."""
    vectors = encode(texts.tolist())
    return np.array([vector.astype(np.int32).tobytes() + end.tobytes() for vector in vectors], object)
