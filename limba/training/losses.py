"""Cross entropy as sums over tokens, so that one division at the end serves any split of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from limba.config import LossConfig

Sums = dict[str, Float[Array, ""]]
Batch = Mapping[str, Array]


class Smoothing(NamedTuple):
    """The constants of label smoothing: on * (the target's nats) + off * (the sum of all entries' nats) - entropy.

    T5X's definition: smoothing s leaves 1 - s on the target and spreads s over the other V - 1 entries. The entropy
    of that mixture is subtracted, so that a perfect model has loss 0.

    >>> on, off, entropy = Smoothing.of(0.1, vocab_size=11)
    >>> round(on, 3), round(off, 3), round(entropy, 3)
    (0.89, 0.01, 0.555)
    """

    on: float = 1.0
    off: float = 0.0
    entropy: float = 0.0

    @classmethod
    def of(cls, smoothing: float, vocab_size: int) -> Smoothing:
        if not smoothing:
            return cls()
        share, off = 1.0 - smoothing, smoothing / (vocab_size - 1)
        entropy = -(share * math.log(share) + (vocab_size - 1) * off * math.log(off))
        return cls(share - off, off, entropy)


def trained_nats(
    config: LossConfig, vocab_size: int, plain: Array, log_z: Array, sum_of_logits: Callable[[], Array]
) -> Float[Array, "B Q"]:
    """Returns the loss per token: its plain nats with label smoothing, and the z-loss, `z_loss * log(Z)^2`.

    Z is the softmax's normalizer. All arrays are [B, Q].
    """
    trained = plain
    if config.label_smoothing:
        on, off, entropy = Smoothing.of(config.label_smoothing, vocab_size)
        trained = on * plain + off * (vocab_size * log_z - sum_of_logits()) - entropy
    return trained + config.z_loss * jnp.square(log_z)


def cross_entropy(
    logits: Float[Array, "B Q V"], targets: Int[Array, "B Q"], config: LossConfig
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q"], Bool[Array, "B Q"]]:
    """Returns per token: trained nats (z-loss, smoothing), plain nats, whether no token is likelier than the target."""
    logits = logits.astype(jnp.float32)
    vocab_size = logits.shape[-1]
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A comparison and a sum, not a gather: its gradient needs no scatter, and it shards over V.
    is_target = targets[..., None] == jnp.arange(vocab_size)[None, None]
    target_logit = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    # The logsumexp computes the maximum anyway; an argmax would read all logits once more.
    correct = target_logit >= jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    plain = log_z - target_logit
    trained = trained_nats(config, vocab_size, plain, log_z, lambda: jnp.sum(logits, axis=-1))
    return trained, plain, correct


def weighted_sums(per_token: tuple[Array, Array, Array], weights: Float[Array, "B Q"]) -> Sums:
    """Returns the sums of what `cross_entropy` returns: `loss`, `nats`, `correct`; and `tokens`, that of the weights.

    >>> one = jnp.ones((1, 2))
    >>> {name: float(value) for name, value in weighted_sums((3 * one, 2 * one, one), jnp.array([[1.0, 0.0]])).items()}
    {'loss': 3.0, 'nats': 2.0, 'correct': 1.0, 'tokens': 1.0}
    """
    sums = {name: jnp.sum(x * weights) for name, x in zip(("loss", "nats", "correct"), per_token, strict=True)}
    return {**sums, "tokens": jnp.sum(weights)}


def at_predicted(batch: Batch, *arrays: Array) -> tuple[Array, ...]:
    """Returns arrays [B, L, …] at the positions with logits: the batch's `decoder_predicted_positions`, or all."""
    places = batch.get("decoder_predicted_positions")
    if places is None:
        return arrays
    at = {number: places.reshape(*places.shape, *(1,) * (number - 2)) for number in (2, 3)}
    return tuple(jnp.take_along_axis(each, at[each.ndim], axis=1) for each in arrays)


def token_weights(config: LossConfig, batch: Batch) -> Float[Array, "B Q"]:
    """Returns each target token's weight in the loss: the batch's own, or with 'sequences' divided by its sequence's.

    A sequence is a row, or a segment of a packed row. One without weights stays without (T5X's AVERAGE_PER_SEQUENCE).

    >>> weights = jnp.array([[1.0, 1.0, 1.0, 0.0]])
    >>> packed = {"decoder_loss_weights": weights, "decoder_segment_ids": jnp.array([[1, 1, 2, 0]])}
    >>> token_weights(LossConfig(normalize_by="sequences"), packed).tolist()
    [[0.5, 0.5, 1.0, 0.0]]
    """
    weights = batch["decoder_loss_weights"].astype(jnp.float32)
    if config.normalize_by != "sequences":
        return weights
    if "decoder_segment_ids" in batch:
        segments = batch["decoder_segment_ids"]
        same = (segments[:, :, None] == segments[:, None, :]).astype(jnp.float32)
        totals = jnp.einsum("bqk,bk->bq", same, weights, precision=jax.lax.Precision.HIGHEST)
    else:
        totals = jnp.sum(weights, axis=-1, keepdims=True)
    return jnp.where(totals > 0, weights / jnp.where(totals > 0, totals, 1.0), 0.0)


def divisor(config: LossConfig, sums: Sums, targets: Int[Array, "B Q"]) -> Float[Array, ""]:
    """Returns what the summed loss and its gradient are divided by; see `LossConfig.normalize_by`.

    The summed `weights` are the real tokens, or with 'sequences' the sequences. At least 1.

    >>> sums, targets = {"weights": jnp.float32(3)}, jnp.ones((2, 4), jnp.int32)
    >>> [float(divisor(LossConfig(normalize_by=by), sums, targets)) for by in ("tokens", "all_tokens", None, 0.5)]
    [3.0, 8.0, 1.0, 0.5]
    """
    if config.normalize_by in ("tokens", "sequences"):
        return jnp.maximum(sums["weights"], 1.0)
    if config.normalize_by == "all_tokens":
        return jnp.float32(targets.size)
    return jnp.float32(1.0 if config.normalize_by is None else config.normalize_by)
