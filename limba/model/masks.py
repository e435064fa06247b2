"""Which key a query may see, as boolean arrays [B, Q, K]; True is visible."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def padding_mask(queries: Int[Array, "B Q"], keys: Int[Array, "B K"]) -> Bool[Array, "B Q K"]:
    """True where both tokens are real: id 0 is padding in every T5 vocabulary."""
    return (queries > 0)[:, :, None] & (keys > 0)[:, None, :]


def segment_mask(queries: Int[Array, "B Q"], keys: Int[Array, "B K"]) -> Bool[Array, "B Q K"]:
    """True where both belong to the same packed example; padding has segment 0."""
    return queries[:, :, None] == keys[:, None, :]


def causal_mask(length: int) -> Bool[Array, "1 L L"]:
    """True at and before the query."""
    return jnp.tril(jnp.ones((1, length, length), bool))


def prefix_mask(is_prefix: Bool[Array, "B L"]) -> Bool[Array, "B L L"]:
    """True where both belong to a prefix, which is seen whole (Raffel et al. 2020, section 3.2.1)."""
    return is_prefix[:, :, None] & is_prefix[:, None, :]
