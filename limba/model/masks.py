"""Attention masks: a query sees the keys of its example in a packed row, no padding, and in a decoder no later keys."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


@dataclasses.dataclass(frozen=True)
class Mask:
    """A query sees the keys with its own id; with id 0 it sees none. `causal` also hides the keys after it."""

    query_ids: Int[Array, "B Q"]
    key_ids: Int[Array, "B K"]
    causal: bool = False

    def visible(self) -> Bool[Array, "B Q K"]:
        """Returns the mask as an array: True where the query sees the key."""
        same = (self.query_ids[:, :, None] == self.key_ids[:, None, :]) & (self.query_ids > 0)[:, :, None]
        return same & causal_mask(same.shape[1]) if self.causal else same


def ids_of(tokens: Int[Array, "B L"], segments: Int[Array, "B L"] | None = None) -> Int[Array, "B L"]:
    """Returns for each token the index of its example in the row, from 1; 0 for padding (token 0 of every T5).

    >>> ids_of(jnp.array([[7, 8, 0]])).tolist()
    [[1, 1, 0]]
    """
    return jnp.where(tokens > 0, 1 if segments is None else segments, 0)


def causal_mask(length: int) -> Bool[Array, "1 L L"]:
    """Returns True at the query's position and before it."""
    return jnp.tril(jnp.ones((1, length, length), bool))


def prefix_mask(is_prefix: Bool[Array, "B L"]) -> Bool[Array, "B L L"]:
    """Returns True if query and key are both in the prefix, which has full attention (Raffel et al. 2020, 3.2.1)."""
    return is_prefix[:, :, None] & is_prefix[:, None, :]
