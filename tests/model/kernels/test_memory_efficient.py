"""Attention that saves no scores against the plain einsum, in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import LossConfig, MeshConfig
from limba.model.kernels.choose import Einsum, MemoryEfficient, choose
from limba.model.kernels.einsum import dot_product_attention, memory_efficient_attention
from tests import tiny


def inputs(batch: int, queries: int, keys: int, heads: int, width: int, has_bias: bool, mask: str) -> tuple:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    heads_last = [normal(batch, length, heads, width) for length in (queries, keys, keys)]
    visible = None
    if mask == "causal":
        visible = np.tril(np.ones((batch, queries, keys), bool))
    elif mask == "segments":
        visible = random.integers(0, 3, (batch, queries, 1)) == random.integers(0, 3, (batch, 1, keys))
        visible[0, 0] = False  # a query that sees nothing
    arrays = (*heads_last, normal(heads, queries, keys) if has_bias else None, visible)
    return tuple(array if array is None else jnp.asarray(array) for array in arrays)


@pytest.mark.parametrize(
    ("shape", "has_bias", "mask"),
    [
        ((3, 17, 17, 4, 8), True, "segments"),
        ((2, 16, 16, 2, 16), True, "causal"),
        ((4, 5, 24, 3, 8), False, "segments"),
        ((1, 8, 8, 1, 4), False, "none"),
        ((2, 1, 9, 2, 8), True, "none"),
    ],
)
def test_memory_efficient_attention_and_its_gradients_equal_einsum(shape: tuple, has_bias: bool, mask: str) -> None:
    *arrays, visible = inputs(*shape, has_bias, mask)
    direction = jnp.asarray(np.random.default_rng(1).standard_normal(arrays[0].shape).astype(np.float32))

    def attend_and_pull_back(attend):
        @jax.jit
        def run(*arrays):
            attended, pull = jax.vjp(lambda *xs: attend(*xs, visible), *arrays)
            return attended, pull(direction)

        return run(*arrays)

    expected = attend_and_pull_back(dot_product_attention)
    assert np.isfinite(np.asarray(expected[0])).all()
    jax.tree.map(
        lambda ours, plain: np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5),
        attend_and_pull_back(memory_efficient_attention),
        expected,
    )


@pytest.mark.night
def test_network_has_the_same_gradients_with_memory_efficient_attention() -> None:
    plain, lean = (tiny.model(attention=name, dropout_rate=0.2) for name in ("einsum", "memory_efficient"))
    tiny.assert_same_gradients((plain, MeshConfig(1), LossConfig()), (lean, MeshConfig(1), LossConfig()))


def test_one_cpu_takes_it_for_scores_that_exceed_its_cache() -> None:
    one, two = (tiny.mesh_of(MeshConfig(), devices) for devices in (1, 2))
    assert isinstance(choose(tiny.MODEL, one, 8, 512, 512), MemoryEfficient)
    assert type(choose(tiny.MODEL, one, 8, 114, 114)) is type(choose(tiny.MODEL, two, 8, 512, 512)) is Einsum
    assert isinstance(choose(tiny.model(attention="memory_efficient"), two, 8, 8, 8), MemoryEfficient)
