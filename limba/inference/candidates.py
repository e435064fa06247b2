"""The ids that may come next: the likeliest of each row, and draws from them.

A vocabulary is not sorted: on a CPU that takes longer than a token's decode step.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from limba.config import GenerationConfig

BLOCK = 128  # ids whose largest value is looked at first
FLOAT32_ONE = 0x3F800000  # the bits of 1.0; of positive numbers the larger one has the larger bits
ROUNDS = 30  # that many halvings leave one number between 0 and 1


def best(values: Float[Array, "R V"], num: int) -> tuple[Float[Array, "R M"], Int[Array, "R M"]]:
    """Returns the `num` largest values of each row and their ids, largest first, of equal values the lowest ids.

    It is `lax.top_k` of the `num` blocks with the largest values, which have them all.
    """
    rows, num_ids = values.shape
    num_blocks = -(-num_ids // BLOCK)
    if num >= num_blocks:
        return jax.lax.top_k(values, num)
    missing = num_blocks * BLOCK - num_ids
    if missing:
        values = jnp.pad(values, ((0, 0), (0, missing)), constant_values=-jnp.inf)
    blocks = values.T.reshape(num_blocks, BLOCK, rows)  # as a decode step on a CPU has computed them
    _, chosen = jax.lax.top_k(jnp.max(blocks, axis=1).T, num)
    chosen = jnp.sort(chosen, axis=-1)  # so that the lowest ids come first
    candidates = blocks[chosen, :, jnp.arange(rows)[:, None]].reshape(rows, num * BLOCK)
    largest, places = jax.lax.top_k(candidates, num)
    ids = jnp.take_along_axis(chosen, places // BLOCK, axis=1) * BLOCK + places % BLOCK
    return largest, ids


def draw(logits: Float[Array, "R V"], keys: Key[Array, " R"], config: GenerationConfig) -> Int[Array, " R"]:
    """Returns ids drawn by temperature, then top-k, then top-p, in the order in which transformers applies them."""
    logits = logits / config.temperature
    if config.top_k is not None:
        largest, _ = best(logits, min(config.top_k, logits.shape[-1]))
        least = jnp.min(largest, axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if config.top_p is not None and config.top_p < 1:
        probabilities = jax.nn.softmax(logits, axis=-1)
        logits = jnp.where(probabilities < least_within(probabilities, config.top_p), -jnp.inf, logits)
    return jax.vmap(jax.random.categorical)(keys, logits)


def least_within(probabilities: Float[Array, "R V"], top_p: float) -> Float[Array, "R 1"]:
    """Returns the smallest number of which the larger probabilities have a sum below `top_p`.

    A smallest set with that probability (Holtzman et al. 2020, arXiv:1904.09751, section 3.1) is what is not below it,
    with all that are equal to its least one. The number is found by halving, exactly.
    """
    rows = probabilities.shape[0]

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        too_low, high_enough = bounds
        middle = (too_low + high_enough) // 2
        limit = jax.lax.bitcast_convert_type(middle, jnp.float32)
        mass = jnp.sum(jnp.where(probabilities > limit, probabilities, 0.0), axis=-1, keepdims=True)
        is_enough = mass < top_p
        return jnp.where(is_enough, too_low, middle), jnp.where(is_enough, middle, high_enough)

    bounds = (jnp.zeros((rows, 1), jnp.int32), jnp.full((rows, 1), FLOAT32_ONE, jnp.int32))
    _, least = jax.lax.fori_loop(0, ROUNDS, halve, bounds)
    return jax.lax.bitcast_convert_type(least, jnp.float32)
