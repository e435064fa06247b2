"""Tasks, mixtures and vocabularies as seqio's own objects, for tf.data and for whatever else reads seqio's registries.

Imports seqio and TensorFlow, so whoever may do without them imports this only where it is used.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from limba.data.registry import Feature, Mixture, Provider, Task
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary, plain


def add(made: Iterable[Task | Mixture]) -> None:
    """Registers these in seqio's registries."""
    for provider in made:
        if isinstance(provider, Mixture):
            seqio.MixtureRegistry.add_provider(provider.name, as_seqio(provider))
        else:
            seqio.TaskRegistry.add_provider(provider.name, as_seqio(provider))


def as_seqio(task: Provider) -> Any:
    """Returns a task or mixture as seqio's own; one of seqio stays, but for features and tasks that are not seqio's."""
    if isinstance(task, Mixture):
        if isinstance(task, seqio.Mixture):
            return task
        rates: list[Any] = [(as_seqio(part), functools.partial(_rate, task)) for part in task.tasks]
        return seqio.Mixture(task.name, rates)
    features = {name: feature_as_seqio(feature) for name, feature in task.output_features.items()}
    if isinstance(task, seqio.Task):
        unchanged = all(feature is task.output_features[name] for name, feature in features.items())
        return task if unchanged else task.replace(output_features=features)
    choices = {name: value for name, value in vars(task).items() if name != "output_features"}
    return seqio.Task(output_features=features, **choices)


def _rate(mixture: Mixture, task: Task) -> float:
    return mixture.get_rate(task)


def feature_as_seqio(feature: Feature) -> Any:
    """Returns a feature as seqio's own, with a vocabulary of seqio."""
    vocabulary = vocabulary_as_seqio(feature.vocabulary)
    if isinstance(feature, seqio.Feature) and vocabulary is feature.vocabulary:
        return feature
    dtype = tf.as_dtype(feature.dtype)
    return seqio.Feature(vocabulary, feature.add_eos, feature.required, dtype, feature.rank)


def vocabulary_as_seqio(vocabulary: Any) -> seqio.Vocabulary:
    """Returns a vocabulary as seqio's own, with the same ids."""
    if isinstance(vocabulary, seqio.Vocabulary):
        return vocabulary
    if isinstance(vocabulary, SentencePieceVocabulary):
        choices = vocabulary.normalizer_spec_overrides, vocabulary.reverse_extra_ids
        return _SentencePiece(vocabulary.sentencepiece_model_file, vocabulary.extra_ids, *choices)
    if isinstance(vocabulary, ByteVocabulary):
        return seqio.ByteVocabulary(vocabulary.extra_ids)
    return _Encoded(vocabulary)


class _SentencePiece(seqio.SentencePieceVocabulary):
    """seqio's vocabulary, whose model is read as ours: at any address, and again where another file is there."""

    def _model_context(self) -> Any:
        self._model = self._model or plain(self)
        return self._model


class _Encoded(seqio.Vocabulary):
    """seqio's vocabulary of any of ours, whose Python functions TensorFlow calls."""

    def __init__(self, ours: Vocabulary):
        super().__init__(extra_ids=ours.extra_ids)
        self.ours = ours

    @property
    def bos_id(self) -> int | None:
        return self.ours.bos_id

    @property
    def eos_id(self) -> int | None:
        return self.ours.eos_id

    @property
    def unk_id(self) -> int | None:
        return self.ours.unk_id

    @property
    def _base_vocab_size(self) -> int:
        return self.ours._base_vocab_size

    def _encode(self, s: str) -> Sequence[int]:
        return self.ours.encode(s)

    def _decode(self, ids: list[int]) -> str:
        return self.ours._decode(ids)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        def encode(text: bytes | np.ndarray) -> np.ndarray:
            content = text if isinstance(text, bytes) else text.item()  # a graph gives bytes, eager code an array
            return np.asarray(self.ours.encode(content.decode()), np.int32)

        tensor = tf.convert_to_tensor(s)  # of a str, numpy_function would make an array of numpy's own strings
        return tf.ensure_shape(tf.numpy_function(encode, [tensor], tf.int32, stateful=False), [None])

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        def decode(row: np.ndarray) -> bytes:
            return self.ours._decode(row.tolist()).encode()

        return tf.numpy_function(decode, [ids], tf.string, stateful=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Encoded) and self.ours == other.ours

    __hash__ = seqio.Vocabulary.__hash__
