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
        return same & causal_mask(same.shape[1]) if self.causal else same


def ids_of(tokens: Int[Array, "B L"], segments: Int[Array, "B L"] | None = None) -> Int[Array, "B L"]:
    """Returns each token's example in its row, counted from 1; 0 is padding, token 0 in every T5 vocabulary."""
    return jnp.where(tokens > 0, 1 if segments is None else segments, 0)


def causal_mask(length: int) -> Bool[Array, "1 L L"]:
    """True at and before the query."""
    return jnp.tril(jnp.ones((1, length, length), bool))


def prefix_mask(is_prefix: Bool[Array, "B L"]) -> Bool[Array, "B L L"]:
    """True where both belong to a prefix, which is seen whole (Raffel et al. 2020, section 3.2.1)."""
    return is_prefix[:, :, None] & is_prefix[:, None, :]
