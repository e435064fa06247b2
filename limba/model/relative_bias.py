"""T5's relative position bias: a learned number per head and bucket of distance.

Raffel et al. 2020 (arXiv:1910.10683) section 2.1: half of the buckets count single steps, the rest
grow with the logarithm of the distance up to `max_distance`, beyond which all share the last one.
"""

from __future__ import annotations

import math

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from limba.model.kernels.sharded import PallasAttention


def relative_position_buckets(
    distances: np.ndarray, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> np.ndarray:
    """Returns the bucket of each distance (key position minus query position), int32.

    Bidirectional (encoder) halves the buckets between past and future; otherwise the future, which
    the causal mask hides, falls into bucket 0. Computed in float32, as every T5 has been.

    >>> relative_position_buckets(np.arange(-3, 4), bidirectional=True, num_buckets=32, max_distance=128)
    array([ 3,  2,  1,  0, 17, 18, 19], dtype=int32)
    """
    offset = np.zeros_like(distances)
    if bidirectional:
        num_buckets //= 2
        offset = (distances > 0) * num_buckets
        distances = np.abs(distances)
    else:
        distances = np.maximum(-distances, 0)
    num_exact = num_buckets // 2
    ratio = distances.astype(np.float32) / num_exact + np.finfo(np.float32).eps
    logarithmic = np.log(ratio) / math.log(max_distance / num_exact) * (num_buckets - num_exact)
    large = np.minimum(num_exact + logarithmic.astype(np.int32), num_buckets - 1)
    return (offset + np.where(distances < num_exact, distances, large)).astype(np.int32)


class RelativeBias(nn.Module):
    """The table `rel_embedding` [H, buckets], looked up for every pair of positions.

    With `attend`, it comes as that attention wants it: on a GPU as its diagonals, from distance -Q on, else with keys
    before queries; and once for each group of devices that share a batch. Each adds up its own gradient over the
    layers; what is reduced between them is the table's.
    """

    num_heads: int
    num_buckets: int
    max_distance: int
    bidirectional: bool

    @nn.compact
    def __call__(
        self, query_length: int, key_length: int, attend: PallasAttention | None = None
    ) -> Float[Array, "H Q K"] | Float[Array, "G H K Q"] | Float[Array, "G H P"]:
        init = nn.with_logical_partitioning(
            nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"), ("heads", "relpos_buckets")
        )
        table = self.param("rel_embedding", init, (self.num_heads, self.num_buckets), jnp.float32)
        # The bias is one number on every diagonal: it is looked up once a diagonal, not once a pair.
        # Column p stands for distance p, the last query_length columns for distances below zero.
        period = query_length + key_length
        columns = np.arange(period)
        buckets = relative_position_buckets(
            np.where(columns < key_length, columns, columns - period),
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        if attend is not None:
            # Read from the most negative distance on, or as query minus key.
            buckets = np.roll(buckets, query_length) if attend.on_gpu else buckets[-columns % period]
            tables = attend.for_each_group(table)
            diagonals = _diagonals(tables.reshape(-1, self.num_buckets), buckets)
            if attend.on_gpu:
                return diagonals.reshape(*tables.shape[:2], period)
            spread = _spread_diagonals(diagonals, key_length, query_length)
            return spread.reshape(*tables.shape[:2], key_length, query_length)
        return _spread_diagonals(_diagonals(table, buckets), query_length, key_length)


def _diagonals(table: Float[Array, "H buckets"], buckets: np.ndarray) -> Float[Array, "H P"]:
    one_hot = (buckets == np.arange(table.shape[-1])[:, None]).astype(np.float32)
    return jnp.matmul(table, one_hot, precision="highest")


def _spread_diagonals(diagonals: Float[Array, "H P"], query_length: int, key_length: int) -> Float[Array, "H Q K"]:
    """Returns [h, q, k] = diagonals[h, (k - q) mod P], by reading P-long rows at a stride of P - 1."""
    heads, period = diagonals.shape
    rows = jnp.broadcast_to(diagonals[:, None], (heads, query_length, period)).reshape(heads, -1)
    skewed = rows[:, : query_length * (period - 1)].reshape(heads, query_length, period - 1)
    return skewed[:, :, :key_length]
