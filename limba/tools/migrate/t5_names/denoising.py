"""t5's preprocessors of tokens: those that cut and join them, noise masks, what noise becomes, and `denoise`.

Raffel et al. 2020 (arXiv:1910.10683, sections 3.1.4 and 3.3). With equal seeds the numbers are t5's own.
`limba.data.objectives` has the same span corruption on whole blocks, several times as fast.
"""

# pyright: reportAttributeAccessIssue=false, reportInvalidTypeForm=false, reportCallIssue=false
# (TensorFlow makes these modules when it is imported, seqio's decorator hides the seeds, and seqio has Feature as a
# variable)

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from limba.api import PieceTable
from limba.config import InputError

Length = Any  # a number, or a tensor of one
Seed = Any  # two numbers, or a tensor of them
Seeds = Sequence[Seed]
Example = Mapping[str, tf.Tensor]


def iid_noise_mask(length: Length, noise_density: float, seeds: Seeds) -> tf.Tensor:
    """Returns a mask whose tokens are noise independently of each other."""
    return tf.random.stateless_uniform([length], seed=seeds[0]) < noise_density


def random_prefix_noise_mask(length: Length, noise_density: float, seeds: Seeds) -> tf.Tensor:
    """Returns a mask of a prefix, whose length is random up to length - 1; for a density of 0.5 from 1 on."""
    if noise_density > 0.5:
        raise InputError(f"random_prefix_noise_mask has density {noise_density}; give 0.5 or less.")
    longest = length - 1
    share = tf.cast(tf.round((1 - 2 * noise_density) * tf.cast(longest, tf.float32)), tf.int32)
    shortest = tf.minimum(longest, tf.maximum(1, share))
    count = tf.random.stateless_uniform([], seeds[0], shortest, longest + 1, tf.int32)
    return tf.range(length, dtype=tf.int32) < count


def random_spans_noise_mask(
    length: Length, noise_density: float, seeds: Seeds, mean_noise_span_length: float = 3.0, random_roll: bool = False
) -> tf.Tensor:
    """Returns a mask of random spans: text and noise alternate, beginning with text.

    The numbers of noise tokens and of spans follow from the length; all masks with these numbers are equally likely.
    `random_roll` then rotates the mask by a random number of places.
    """
    if noise_density == 0.0:
        return tf.zeros(length, tf.bool)
    padded = tf.maximum(length, 2)
    noise = tf.cast(tf.round(tf.cast(padded, tf.float32) * noise_density), tf.int32)
    noise = tf.minimum(tf.maximum(noise, 1), padded - 1)
    spans = tf.cast(tf.round(tf.cast(noise, tf.float32) / mean_noise_span_length), tf.int32)
    spans = tf.maximum(spans, 1)
    lengths = tf.stack([_segments(padded - noise, spans, seeds[1]), _segments(noise, spans, seeds[0])], axis=1)
    is_noise = tf.repeat(tf.tile(tf.constant([False, True]), [spans]), tf.reshape(lengths, [-1]))[:length]
    if not random_roll:
        return is_noise
    seed = (seeds[0][0] + seeds[1][1], seeds[0][1] - seeds[1][0])
    return tf.roll(is_noise, tf.random.stateless_uniform([1], seed, 0, padded, tf.int32)[0], axis=0)


def _segments(items: tf.Tensor, count: tf.Tensor, seed: Seed) -> tf.Tensor:
    """Returns `count` lengths above 0 that add up to `items`."""
    begins = tf.cast(tf.range(items - 1) < count - 1, tf.int32)
    number = tf.cumsum(tf.pad(seqio.stateless_shuffle(begins, seed), [[1, 0]]))
    return tf.math.bincount(number, minlength=count)


def sentinel_id(vocabulary: seqio.Vocabulary, return_value: int | None = None) -> int:
    """Returns the first sentinel, the vocabulary's last id, as t5 has it.

    Raises InputError for a vocabulary whose sentinels are elsewhere: t5 would hide text behind real pieces.
    """
    if return_value is not None:
        return return_value
    sentinels = PieceTable(vocabulary).sentinels  # pyright: ignore[reportArgumentType]
    if sentinels and sentinels[0] != vocabulary.vocab_size - 1:
        raise InputError(
            f"The vocabulary has <extra_id_0> at id {sentinels[0]}, and t5's preprocessors take its last ids, from"
            f" {vocabulary.vocab_size - 1} down, for sentinels; take Limba's span_corruption, which finds them by their"
            " names."
        )
    return vocabulary.vocab_size - 1


def _follows(mask: tf.Tensor) -> tf.Tensor:
    """Returns True where the token before is in the same span."""
    return tf.logical_and(mask, tf.pad(mask[:-1], [[1, 0]]))


def noise_token_to_sentinel(
    tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: seqio.Vocabulary, seeds: Seeds
) -> tf.Tensor:
    """Replaces each noise token by the first sentinel."""
    return tf.where(noise_mask, tf.cast(sentinel_id(vocabulary), tokens.dtype), tokens)


def noise_span_to_unique_sentinel(
    tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: seqio.Vocabulary, seeds: Seeds
) -> tf.Tensor:
    """Replaces each span of noise by a sentinel of its own, counted down from the vocabulary's last id."""
    follows = _follows(noise_mask)
    first = tf.logical_and(noise_mask, tf.logical_not(follows))
    sentinels = sentinel_id(vocabulary) + 1 - tf.cumsum(tf.cast(first, tokens.dtype))
    return tf.where(first, sentinels, tokens)[tf.logical_not(follows)]


def nonnoise_span_to_unique_sentinel(
    tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: seqio.Vocabulary, seeds: Seeds
) -> tf.Tensor:
    """Replaces each span of text by a sentinel of its own."""
    return noise_span_to_unique_sentinel(tokens, tf.logical_not(noise_mask), vocabulary, seeds)


def drop_noise_tokens(
    tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: seqio.Vocabulary, seeds: Seeds
) -> tf.Tensor:
    """Returns the text."""
    return tokens[tf.logical_not(noise_mask)]


def drop_nonnoise_tokens(
    tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: seqio.Vocabulary, seeds: Seeds
) -> tf.Tensor:
    """Returns the noise."""
    return tokens[noise_mask]


def single_example_denoise(
    features: Example,
    seed: Seed,
    *,
    output_features: Mapping[str, seqio.Feature],
    noise_density: float,
    noise_mask_fn: Callable[..., tf.Tensor],
    inputs_fn: Callable[..., tf.Tensor],
    targets_fn: Callable[..., tf.Tensor] | None = None,
    passthrough_feature_keys: Sequence[str] | None = None,
    input_feature_key: str = "inputs",
) -> dict[str, tf.Tensor]:
    """Returns an example's inputs and targets: its tokens with a random mask, through `inputs_fn` and `targets_fn`.

    The seed is split in six: two each for the mask, the inputs and the targets. Raises ValueError if inputs and targets
    have different vocabularies, or a feature would be both made and passed through.
    """
    passed = tuple(passthrough_feature_keys or ())
    if {input_feature_key, "targets"} & set(passed):
        raise ValueError(f"denoise makes {input_feature_key} and targets, and cannot pass them through too.")
    vocabulary = output_features["targets"].vocabulary
    if input_feature_key in output_features and output_features[input_feature_key].vocabulary != vocabulary:
        raise ValueError("denoise makes inputs of the targets' tokens, and this task has another vocabulary for each.")
    seeds = tf.unstack(tf.random.experimental.stateless_split(_as_seed(seed), 6))
    tokens = features["targets"]
    mask = noise_mask_fn(tf.size(tokens), noise_density, seeds=seeds[:2])
    inputs = inputs_fn(tokens, mask, vocabulary, seeds=seeds[2:4])
    targets = targets_fn(tokens, mask, vocabulary, seeds=seeds[4:6]) if targets_fn else tokens
    return {input_feature_key: inputs, "targets": targets, **{name: features[name] for name in passed}}


def _as_seed(seed: Seed) -> tf.Tensor:
    seed = tf.convert_to_tensor(seed)
    return seed if seed.dtype in (tf.int32, tf.int64) else tf.cast(seed, tf.int64)


def denoise(
    dataset: tf.data.Dataset,
    output_features: Mapping[str, seqio.Feature],
    noise_density: float,
    noise_mask_fn: Callable[..., tf.Tensor],
    inputs_fn: Callable[..., tf.Tensor],
    targets_fn: Callable[..., tf.Tensor] | None = None,
    passthrough_feature_keys: Sequence[str] | None = None,
    input_feature_key: str = "inputs",
    **unused_kwargs: object,
) -> tf.data.Dataset:
    """Applies `single_example_denoise` to each example, with a seed of its own."""
    return seqio.map_over_dataset(single_example_denoise, num_seeds=1)(
        dataset,
        output_features=output_features,
        noise_density=noise_density,
        noise_mask_fn=noise_mask_fn,
        inputs_fn=inputs_fn,
        targets_fn=targets_fn,
        passthrough_feature_keys=passthrough_feature_keys,
        input_feature_key=input_feature_key,
    )


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
    """Returns one chunk of at most `max_length` tokens of each example that has any.

    The chunk of all `additional_feature_keys` is the same.
    """
    cut, passed = (feature_key, *(additional_feature_keys or ())), tuple(passthrough_feature_keys or ())
    _check_apart(cut, passed)
    if max_length is None and sequence_length is not None:
        max_length = _room(feature_key, sequence_length, output_features)
    if max_length is None:
        raise ValueError("select_random_chunk has neither max_length nor sequence_length; give one.")

    @seqio.map_over_dataset(num_seeds=1)
    def chunk(features: Example, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        first, second = tf.unstack(tf.random.experimental.stateless_split(seed))
        count, length = tf.size(features[feature_key]), max_length
        if min_length is not None:
            length = tf.random.stateless_uniform([], first, min_length, max_length, tf.int32)
        if uniform_random_start:
            start = tf.random.stateless_uniform([], second, 1 - length, count, tf.int32)
            end, start = tf.minimum(start + length, count), tf.maximum(start, 0)
        else:
            start = length * tf.random.stateless_uniform([], second, 0, _num_parts(count, length), tf.int32)
            end = tf.minimum(start + length, count)
        found = {name: _of_length(features[name], count, name)[start:end] for name in cut}
        return {**found, **{name: features[name] for name in passed}}

    return chunk(_not_empty(dataset, feature_key))


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
