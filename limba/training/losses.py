"""Cross entropy as sums over tokens, so that one division at the end serves any split of the batch."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from limba.config import LossConfig


def cross_entropy(
    logits: Float[Array, "B Q V"], targets: Int[Array, "B Q"], config: LossConfig
) -> tuple[Float[Array, "B Q"], Float[Array, "B Q"], Bool[Array, "B Q"]]:
    """Returns per token: nats as trained (z-loss and smoothing), plain nats, whether no token is likelier.

    T5X's definition: smoothing s leaves 1 - s on the target and spreads s over the other V - 1
    entries, less the entropy of that mixture, so that a perfect model scores 0; the z-loss is
    `z_loss * log(Z)^2`, Z the softmax's normalizer.
    """
    logits = logits.astype(jnp.float32)
    vocab_size = logits.shape[-1]
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A comparison and a sum, not a gather: its gradient is no scatter, and it shards over V.
    is_target = targets[..., None] == jnp.arange(vocab_size)[None, None]
    target_logit = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    # The maximum is at hand from the logsumexp; an argmax would read all logits once more.
    correct = target_logit >= jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    plain = log_z - target_logit
    trained = plain
    if config.label_smoothing:
        on = 1.0 - config.label_smoothing
        off = config.label_smoothing / (vocab_size - 1)
        everywhere = vocab_size * log_z - jnp.sum(logits, axis=-1)
        entropy = -(on * math.log(on) + (vocab_size - 1) * off * math.log(off))
        trained = (on - off) * plain + off * everywhere - entropy
    return trained + config.z_loss * jnp.square(log_z), plain, correct
