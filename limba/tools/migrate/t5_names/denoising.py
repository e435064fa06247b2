"""t5's denoising: noise masks, what noise becomes in inputs and targets, and `denoise`, on one example at a time.

Raffel et al. 2020 (arXiv:1910.10683, sections 3.1.4 and 3.3). With equal seeds the numbers are t5's own.
`limba.data.objectives` has the same span corruption on whole blocks, several times as fast.
"""

# pyright: reportAttributeAccessIssue=false, reportInvalidTypeForm=false, reportCallIssue=false
# (TensorFlow makes these modules when it is imported, seqio's decorator hides the seeds, and seqio has Feature as a
# variable)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from limba.config import InputError

Length = Any  # a number, or a tensor of one
Seed = Any  # two numbers, or a tensor of them
Seeds = Sequence[Seed]
Example = Mapping[str, tf.Tensor]


def iid_noise_mask(length: Length, noise_density: float, seeds: Seeds) -> tf.Tensor:
    """Returns a mask whose tokens are noise independently of each other."""
    return tf.random.stateless_uniform([length], seed=seeds[0]) < noise_density


def regular_noise_mask(
    length: Length, noise_density: float, seeds: Seeds, min_span_length: int = 1, max_span_length: int = 5
) -> tf.Tensor:
    """Returns a mask of spans of one random length, at equal distances from a random place on."""
    span = tf.random.stateless_uniform([], seeds[0], min_span_length, max_span_length + 1, tf.int32)
    period = tf.cast(tf.round(tf.cast(span, tf.float32) / noise_density), tf.int32)
    offset = tf.random.stateless_uniform([], seeds[1], 0, period, tf.int32)
    return (tf.range(length, dtype=tf.int32) + offset) % period < span


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
    length: Length,
    noise_density: float,
    seeds: Seeds,
    mean_noise_span_length: float = 3.0,
    random_roll: bool = False,
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
    """Returns the first sentinel, the vocabulary's last id."""
    return vocabulary.vocab_size - 1 if return_value is None else return_value


def _follows(mask: tf.Tensor) -> tf.Tensor:
    """Returns True where the token before is in the same span."""
    return tf.logical_and(mask, tf.pad(mask[:-1], [[1, 0]]))


def noise_token_to_sentinel(
    tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: seqio.Vocabulary, seeds: Seeds
) -> tf.Tensor:
    """Replaces each noise token by the first sentinel."""
    return tf.where(noise_mask, tf.cast(sentinel_id(vocabulary), tokens.dtype), tokens)


def noise_span_to_sentinel(
    tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: seqio.Vocabulary, seeds: Seeds
) -> tf.Tensor:
    """Replaces each span of noise by the first sentinel."""
    return noise_token_to_sentinel(tokens, noise_mask, vocabulary, seeds)[tf.logical_not(_follows(noise_mask))]


def nonnoise_span_to_sentinel(
    tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: seqio.Vocabulary, seeds: Seeds
) -> tf.Tensor:
    """Replaces each span of text by the first sentinel."""
    return noise_span_to_sentinel(tokens, tf.logical_not(noise_mask), vocabulary, seeds)


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


def noise_token_to_gathered_token(tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: Any, seeds: Seeds) -> tf.Tensor:
    """Replaces each noise token by a random token of the same example."""
    places = tf.random.stateless_uniform(tf.shape(tokens), seeds[0], 0, tf.size(tokens), tf.int32)
    return tf.where(noise_mask, tf.gather(tokens, places), tokens)


def noise_token_to_random_token(
    tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: seqio.Vocabulary, seeds: Seeds, num_reserved_tokens: int = 3
) -> tf.Tensor:
    """Replaces each noise token by a random token of the vocabulary."""
    draws = tf.random.stateless_uniform(
        tf.shape(tokens), seeds[0], num_reserved_tokens, vocabulary.vocab_size, tokens.dtype
    )
    return tf.where(noise_mask, draws, tokens)


def noise_token_to_random_token_or_sentinel(
    tokens: tf.Tensor, noise_mask: tf.Tensor, vocabulary: seqio.Vocabulary, seeds: Seeds, random_prob: float = 0.1
) -> tf.Tensor:
    """Replaces each noise token by the first sentinel, or with `random_prob` by a random token."""
    use_random = tf.random.stateless_uniform(tf.shape(tokens), seed=seeds[0]) < random_prob
    drawn = noise_token_to_random_token(tokens, noise_mask, vocabulary, seeds[1:])
    return tf.where(use_random, drawn, noise_token_to_sentinel(tokens, noise_mask, vocabulary, ()))


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

    @seqio.map_over_dataset(num_seeds=1)
    def of_example(features: Example, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        return single_example_denoise(
            features,
            seed,
            output_features=output_features,
            noise_density=noise_density,
            noise_mask_fn=noise_mask_fn,
            inputs_fn=inputs_fn,
            targets_fn=targets_fn,
            passthrough_feature_keys=passthrough_feature_keys,
            input_feature_key=input_feature_key,
        )

    return of_example(dataset)
