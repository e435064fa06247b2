"""T5's relative position bias: a learned number per head and bucket of distances.

Raffel et al. 2020 (arXiv:1910.10683) section 2.1: half of the buckets hold one distance each, the others grow with the
logarithm of the distance up to `max_distance`; all larger distances share the last bucket.
"""

from __future__ import annotations

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from limba.config import ModelConfig
from limba.model.layers import parameter


def relative_position_buckets(
    distances: np.ndarray, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> np.ndarray:
    """Returns the bucket of each distance (key position minus query position), int32.

    Bidirectional (encoder) halves the buckets between past and future; otherwise the future, which
    the causal mask hides, falls into bucket 0. Computed in float32, as in T5.

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


@dataclasses.dataclass(frozen=True)
class BiasTable:
    """The bias as a function of the distance; an attention kernel turns it into the layout that it reads."""

    table: Float[Array, "H buckets"]
    bidirectional: bool
    max_distance: int

    def at(self, distances: np.ndarray) -> Float[Array, "H N"]:
        """Returns the bias of each distance (key position minus query position)."""
        num_buckets = self.table.shape[-1]
        buckets = relative_position_buckets(
            distances, bidirectional=self.bidirectional, num_buckets=num_buckets, max_distance=self.max_distance
        )
        one_hot = (buckets == np.arange(num_buckets)[:, None]).astype(np.float32)
        return jnp.matmul(self.table, one_hot, precision="highest")

    def pairs(self, rows: int, columns: int, keys_first: bool = False) -> Float[Array, "H R C"]:
        """Returns the bias of queries (rows) and keys (columns), or with `keys_first` of keys and queries.

        It is equal along each diagonal, so it is looked up once per diagonal. Row r of the result is the diagonals
        rolled by r: reading them repeatedly, in rows one shorter than their number, rolls them.
        """
        period = rows + columns
        numbers = np.arange(period)
        distances = np.where(numbers < columns, numbers, numbers - period)  # column minus row, modulo `period`
        diagonals = self.at(-distances if keys_first else distances)
        heads = diagonals.shape[0]
        repeated = jnp.broadcast_to(diagonals[:, None], (heads, rows, period)).reshape(heads, -1)
        return repeated[:, : rows * (period - 1)].reshape(heads, rows, period - 1)[:, :, :columns]


class RelativeBias(nn.Module):
    """The parameter `rel_embedding` [H, buckets] of a stack, or of one layer (umT5)."""

    config: ModelConfig
    bidirectional: bool

    @nn.compact
    def __call__(self) -> BiasTable:
        config = self.config
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        shape = (config.num_heads, config.num_relpos_buckets)
        table = parameter(self, "rel_embedding", init, ("heads", "relpos_buckets"), shape)
        return BiasTable(table, self.bidirectional, config.relpos_max_distance)


def bias_by_distance(config: ModelConfig, table: Float[Array, "H W"], length: int) -> Float[Array, "H L"]:
    """Returns the bias of a key 0, 1, 2, … places before the query, of a decoder."""
    buckets = relative_position_buckets(
        -np.arange(length),
        bidirectional=False,
        num_buckets=config.num_relpos_buckets,
        max_distance=config.relpos_max_distance,
    )
    return table[:, buckets]


def bias_row(by_distance: Float[Array, "H L"], position: Int[Array, ""], length: int) -> Float[Array, "H 1 L"]:
    """Returns [h, 0, k] = by_distance[h, position - k], and zeros after the position, where the mask hides the keys."""
    padded = jnp.pad(jnp.flip(by_distance, axis=1), ((0, 0), (0, length)))
    return jax.lax.dynamic_slice_in_dim(padded, length - 1 - position, length, axis=1)[:, None]
