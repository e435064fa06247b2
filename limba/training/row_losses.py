"""The loss of each row of a batch, and the rows whose text makes it spike."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from limba.config import LossConfig
from limba.model import Batch, Network
from limba.model.trees import Parameters
from limba.sharding.mesh import num_batch_groups
from limba.training.losses import at_predicted, cross_entropy
from limba.training.spikes import MAD_TO_DEVIATION
from limba.training.step import microbatches

LEAST_OF_ROWS = 0.05  # the least deviation that counts, as a share of the loss of an ordinary row


def rows_standing_out(losses: np.ndarray, threshold: float, typical: float) -> list[int]:
    """Returns the rows of a batch whose loss is not finite, or far above an ordinary row's; -inf is a row without text.

    An ordinary row is below the batch's median and below `typical`, the median loss of good steps: so the rows that
    stand out may be most of the batch.

    >>> rows_standing_out(np.array([3.0, 3.1, 9.0, np.inf, 2.9]), threshold=8.0, typical=3.2)
    [2, 3]
    >>> rows_standing_out(np.array([9.0, 9.1, 8.8, 3.0]), threshold=8.0, typical=3.2)
    [0, 1, 2]
    """
    finite = losses[np.isfinite(losses)]
    limit = -np.inf
    if finite.size:
        center = min(float(np.median(finite)), typical)
        below = finite[finite <= center]
        deviation = 0.0
        if below.size > 2:
            deviation = MAD_TO_DEVIATION * float(np.median(center - below))
        limit = center + threshold * max(deviation, LEAST_OF_ROWS * abs(center))
    return [row for row, loss in enumerate(losses.tolist()) if not loss <= limit]


def jit_row_losses(model: Network, loss: LossConfig) -> Callable[[Parameters, Batch], Float[Array, " B"]]:
    """Returns a jitted function from parameters and a batch to the mean loss of each row's tokens, without dropout.

    Each group of devices computes one row at a time, since a training step has no room for all logits either. Rows
    without target tokens have loss -inf.
    """
    groups = 1 if model.mesh is None else num_batch_groups(model.mesh)

    def one_part(params: Parameters, part: Batch) -> Float[Array, " R"]:
        targets = part["decoder_target_tokens"]
        weights = part["decoder_loss_weights"].astype(jnp.float32)
        targets, weights = at_predicted(part, targets, weights)
        trained, _, _ = cross_entropy(model.apply(params, part, None), targets, loss)
        sums = jnp.sum(jnp.where(weights > 0, trained * weights, 0.0), 1)
        tokens = jnp.sum(weights, 1)
        return jnp.where(tokens > 0, sums / jnp.maximum(tokens, 1.0), -jnp.inf)

    def row_losses(params: Parameters, batch: Batch) -> Float[Array, " B"]:
        parts = microbatches(batch, len(batch["decoder_target_tokens"]) // groups)
        by_part = jax.lax.map(lambda part: one_part(params, part), parts)
        return jnp.swapaxes(by_part, 0, 1).reshape(-1)

    whole = None if model.mesh is None else NamedSharding(model.mesh, PartitionSpec())
    return jax.jit(row_losses, out_shardings=whole)
