"""Which key a query may see: the same example's in a packed row, no padding, and in a decoder none behind it."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


@dataclasses.dataclass(frozen=True)
class Mask:
    """A query sees the keys that bear its own id, unless that is 0; `causal` hides those behind it as well."""

    query_ids: Int[Array, "B Q"]
    key_ids: Int[Array, "B K"]
    causal: bool = False

    def visible(self) -> Bool[Array, "B Q K"]:
        """Returns True where the query may look, for attention that takes it as an array."""
        same = (self.query_ids[:, :, None] == self.key_ids[:, None, :]) & (self.query_ids > 0)[:, :, None]
        if not self.causal:
            return same
        queries, keys = same.shape[1:]
        return same & jnp.tril(jnp.ones((queries, keys), bool))[None]


def ids_of(tokens: Int[Array, "B L"], segments: Int[Array, "B L"] | None = None) -> Int[Array, "B L"]:
    """Returns each token's example in its row, counted from 1; 0 is padding, token 0 in every T5 vocabulary."""
    return jnp.where(tokens > 0, 1 if segments is None else segments, 0)
