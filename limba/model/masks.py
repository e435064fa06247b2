"""Attention masks: a query sees the keys of its example in a packed row, no padding, and in a decoder no later keys."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

EVERYWHERE = 1 << 30  # keys to each side, more than any row has


class Rule(NamedTuple):
    """The fields of a `Mask` that are known when a program is compiled, unlike the ids of examples."""

    causal: bool = False
    by_token: bool = False  # whether it has `both_ways`
    reach: int | None = None


@dataclasses.dataclass(frozen=True)
class Mask:
    """A query sees the keys with its own id; with id 0 it sees none. `causal` also hides the keys after it.

    But the tokens of `both_ways` see each other in both directions: a prefix, or rows that are not causal. `reach` is
    how many keys to each side a query sees, unless it sees `everywhere`, which may be the number of a layer that runs.
    """

    query_ids: Int[Array, "B Q"]
    key_ids: Int[Array, "B K"]
    causal: bool = False
    both_ways: Bool[Array, "B L"] | None = None
    reach: int | None = None
    everywhere: Bool[Array, ""] | bool = True

    @property
    def rule(self) -> Rule:
        return Rule(self.causal, self.both_ways is not None, self.reach)

    def visible(self) -> Bool[Array, "B Q K"]:
        """Returns the mask as an array: True where the query sees the key."""
        seen = (self.query_ids[:, :, None] == self.key_ids[:, None, :]) & (self.query_ids > 0)[:, :, None]
        if self.causal:
            before = causal_mask(seen.shape[1])
            seen &= before if self.both_ways is None else before | prefix_mask(self.both_ways)
        if self.reach is not None:
            positions = jnp.arange(seen.shape[1])
            seen &= ((jnp.abs(positions[:, None] - positions[None]) <= self.reach) | self.everywhere)[None]
        return seen

    def for_kernels(self) -> tuple[Int[Array, "B Q"], Int[Array, "B K"], Int[Array, " 1"] | None]:
        """Returns the ids of queries and keys, and the reach of this layer, if it has one.

        By a token's own rule ids are twice as large, and odd for tokens that see each other in both directions.
        """
        query_ids = self.query_ids
        key_ids = self.key_ids
        if self.both_ways is not None:
            query_ids, key_ids = (
                jnp.where(of_side > 0, 2 * of_side + self.both_ways, 0) for of_side in (query_ids, key_ids)
            )
        reach = None if self.reach is None else jnp.where(self.everywhere, EVERYWHERE, self.reach)[None]
        return query_ids, key_ids, reach


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
