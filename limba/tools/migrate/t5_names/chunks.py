"""t5's preprocessors that cut and join tokens, without a choice of what is learned."""

# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
# (TensorFlow makes these modules when it is imported, and seqio's decorator hides the seeds)

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from limba.config import InputError
from limba.tools.migrate.t5_names.denoising import Example

Features = Mapping[str, seqio.Feature]


def random_spans_helper(
    inputs_length: int,
    noise_density: float,
    mean_noise_span_length: float,
    extra_tokens_per_span_inputs: int,
    extra_tokens_per_span_targets: int,
    verbose: bool = False,
) -> tuple[int, int]:
    """Returns (tokens of text, length of the targets) of a row that fills the inputs, ends of sequence included.

    >>> random_spans_helper(512, 0.15, 3.0, 1, 1)
    (568, 114)
    """

    def lengths(tokens: int) -> tuple[int, int]:
        noise = round(tokens * noise_density)
        spans = round(noise / mean_noise_span_length)
        inputs = tokens - noise + spans * extra_tokens_per_span_inputs + 1
        return inputs, noise + spans * extra_tokens_per_span_targets + 1

    tokens = inputs_length - 1
    while lengths(tokens + 1)[0] <= inputs_length:
        tokens += 1
    inputs, targets = lengths(tokens)
    if noise_density == 0.5 and targets > inputs:  # t5 keeps both sides equally long
        return tokens - 1, targets - 1
    return tokens, targets


def single_example_select_random_chunk(
    features: Example,
    seed: tf.Tensor | int,
    output_features: Features,
    max_length: int | None = None,
    feature_key: str = "targets",
    additional_feature_keys: Sequence[str] | None = None,
    passthrough_feature_keys: Sequence[str] | None = None,
    sequence_length: Mapping[str, int] | None = None,
    uniform_random_start: bool = False,
    min_length: int | None = None,
) -> dict[str, tf.Tensor]:
    """Returns one chunk of at most `max_length` tokens, the same of all `additional_feature_keys`."""
    cut = (feature_key, *(additional_feature_keys or ()))
    _check_apart(cut, passthrough_feature_keys)
    if max_length is None and sequence_length is not None:
        max_length = _room(feature_key, sequence_length, output_features)
    if max_length is None:
        raise ValueError("select_random_chunk has neither max_length nor sequence_length; give one.")
    first, second = tf.unstack(tf.random.experimental.stateless_split(seed))
    count = tf.size(features[feature_key])
    length: tf.Tensor | int = max_length
    if min_length is not None:
        length = tf.random.stateless_uniform([], first, min_length, max_length, tf.int32)
    if uniform_random_start:
        start = tf.random.stateless_uniform([], second, 1 - length, count, tf.int32)
        end, start = tf.minimum(start + length, count), tf.maximum(start, 0)
    else:
        start = length * tf.random.stateless_uniform([], second, 0, _num_parts(count, length), tf.int32)
        end = tf.minimum(start + length, count)
    chunk = {name: _of_length(features[name], count, name)[start:end] for name in cut}
    return {**chunk, **{name: features[name] for name in passthrough_feature_keys or ()}}


def _check_apart(cut: Sequence[str], passed: Sequence[str] | None) -> None:
    if both := set(cut) & set(passed or ()):
        raise ValueError(f"{', '.join(sorted(both))} cannot be both cut and passed through; leave one out.")


def _room(name: str, lengths: Mapping[str, int], features: Features) -> int:
    """Returns a feature's length without the end of sequence that is still to come; InputError without the feature."""
    if name not in features:
        raise InputError(
            f"A preprocessor of the task cuts to the length of {name!r}, which its output_features lack (t5 refuses"
            f" such a task, too); add {name!r}: seqio.Feature(vocabulary, add_eos=True) to them."
        )
    return lengths[name] - bool(features[name].add_eos)


def _num_parts(count: tf.Tensor, length: tf.Tensor | int) -> tf.Tensor:
    return tf.cast(tf.math.ceil(tf.cast(count, tf.float32) / tf.cast(length, tf.float32)), tf.int32)


def _of_length(tokens: tf.Tensor, count: tf.Tensor, name: str) -> tf.Tensor:
    check = tf.debugging.assert_equal(tf.shape(tokens)[0], count, f"{name} has another length than the feature cut")
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(tokens)


def _not_empty(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    return dataset.filter(lambda example: tf.size(example[name]) > 0)


def select_random_chunk(
    dataset: tf.data.Dataset,
    output_features: Features,
    max_length: int | None = None,
    feature_key: str = "targets",
    additional_feature_keys: Sequence[str] | None = None,
    passthrough_feature_keys: Sequence[str] | None = None,
    sequence_length: Mapping[str, int] | None = None,
    uniform_random_start: bool = False,
    min_length: int | None = None,
    **unused_kwargs: object,
) -> tf.data.Dataset:
    """Applies `single_example_select_random_chunk` to each example that has tokens."""
    choices = (max_length, feature_key, additional_feature_keys, passthrough_feature_keys, sequence_length)

    @seqio.map_over_dataset(num_seeds=1)
    def of_example(features: Example, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        return single_example_select_random_chunk(
            features, seed, output_features, *choices, uniform_random_start, min_length
        )

    return of_example(_not_empty(dataset, feature_key))


def reduce_concat_tokens(
    dataset: tf.data.Dataset, feature_key: str = "targets", batch_size: int = 128, **unused_kwargs: object
) -> tf.data.Dataset:
    """Joins the tokens of `batch_size` documents in a row, without the id 0."""

    def joined(batch: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        tokens = batch.flat_values
        return {feature_key: tokens[tokens != 0]}

    return dataset.map(lambda example: example[feature_key]).ragged_batch(batch_size).map(joined)


def split_tokens(
    dataset: tf.data.Dataset,
    min_tokens_per_segment: int | None = None,
    max_tokens_per_segment: int | None = None,
    feature_key: str = "targets",
    additional_feature_keys: Sequence[str] | None = None,
    passthrough_feature_keys: Sequence[str] | None = None,
    **unused_kwargs: object,
) -> tf.data.Dataset:
    """Cuts each example into segments of `max_tokens_per_segment`, of which only the last may be shorter.

    With `min_tokens_per_segment` each example has a length of its own, drawn log-uniformly between the two.
    """
    if max_tokens_per_segment is None:
        raise ValueError("split_tokens has no max_tokens_per_segment; give it.")
    cut, passed = (feature_key, *(additional_feature_keys or ())), tuple(passthrough_feature_keys or ())
    _check_apart(cut, passed)
    limits = (min_tokens_per_segment, max_tokens_per_segment)

    @seqio.map_over_dataset(num_seeds=1)
    def with_length(features: Example, seed: tf.Tensor) -> tuple[Example, tf.Tensor]:
        if limits[0] is None:
            return features, tf.constant(limits[1], tf.int32)
        low, high = (math.log(limit) for limit in limits if limit is not None)
        return features, tf.cast(tf.exp(tf.random.stateless_uniform([], seed, low, high)), tf.int32)

    def segments(features: Example, length: tf.Tensor) -> tf.data.Dataset:
        count = tf.size(features[feature_key])
        texts = {name: _of_length(features[name], count, name) for name in cut}
        numbers = tf.data.Dataset.range(tf.cast(_num_parts(count, length), tf.int64), output_type=tf.int32)
        part = lambda number, tokens: tokens[number * length : (number + 1) * length]
        return numbers.map(
            lambda number: {
                **{name: part(number, tokens) for name, tokens in texts.items()},
                **{name: features[name] for name in passed},
            }
        )

    return with_length(_not_empty(dataset, feature_key)).flat_map(segments)


def split_tokens_to_inputs_length(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features, **kwargs: Any
) -> tf.data.Dataset:
    """`split_tokens` to the inputs' length, less the end of sequence."""
    length = _room("inputs", sequence_length, output_features)
    return split_tokens(dataset, max_tokens_per_segment=length, **kwargs)


def split_tokens_to_targets_length(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features, **kwargs: Any
) -> tf.data.Dataset:
    """`split_tokens` to the targets' length, less the end of sequence."""
    length = _room("targets", sequence_length, output_features)
    return split_tokens(dataset, max_tokens_per_segment=length, **kwargs)


def split_tokens_to_random_length(
    dataset: tf.data.Dataset, sequence_length: Mapping[str, int], output_features: Features, **kwargs: Any
) -> tf.data.Dataset:
    """`split_tokens` to a random length from 8 to the inputs', less the end of sequence."""
    length = _room("inputs", sequence_length, output_features)
    return split_tokens(dataset, 8, length, **kwargs)


def concatenate_and_split_to_fixed_length(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    feature_key: str = "targets",
    **unused_kwargs: object,
) -> tf.data.Dataset:
    """Joins all examples' tokens and cuts them into pieces of the feature's length, less the end of sequence."""
    length = _room(feature_key, sequence_length, output_features)
    return dataset.map(lambda example: {feature_key: example[feature_key]}).unbatch().batch(length)


def trim_tokens_at_front(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    keys_to_trim: Sequence[str] | None = None,
    **unused_kwargs: object,
) -> tf.data.Dataset:
    """Keeps the last tokens of each feature: its length, less the end of sequence."""
    names = keys_to_trim or tuple(sequence_length)

    def trimmed(example: Example) -> dict[str, tf.Tensor]:
        return {k: v[-(sequence_length[k] - 1) :] if k in names else v for k, v in example.items()}

    return dataset.map(trimmed)
