"""Attention masks against their definition, key by key."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from limba.model.masks import Mask, ids_of, prefix_mask

pytestmark = pytest.mark.core
TOKENS = np.array([[7, 8, 9, 4, 1, 0], [6, 1, 0, 0, 0, 0]])
SEGMENTS = np.array([[1, 1, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0]])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_query_sees_the_keys_of_its_example(causal: bool, packed: bool) -> None:
    ids = ids_of(jnp.asarray(TOKENS), jnp.asarray(SEGMENTS) if packed else None)
    visible = np.asarray(Mask(ids, ids, causal).visible())
    for row, query, key in itertools.product(range(2), range(6), range(6)):
        both = TOKENS[row, query] > 0 and TOKENS[row, key] > 0
        same = not packed or SEGMENTS[row, query] == SEGMENTS[row, key]
        assert visible[row, query, key] == (both and same and (not causal or key <= query)), (row, query, key)


def test_the_keys_of_another_sequence_have_its_ids() -> None:
    """As a decoder sees an encoder's output; a query that is padding sees none, and nobody sees padding."""
    queries = jnp.array([[1, 2, 0]])
    keys = jnp.array([[1, 1, 2, 0]])
    assert Mask(queries, keys).visible().astype(int).tolist() == [[[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]]


def test_a_prefix_sees_itself_alone() -> None:
    mask = prefix_mask(jnp.array([[True, True, False]])).astype(int)
    assert mask.tolist() == [[[1, 1, 0], [1, 1, 0], [0, 0, 0]]]
