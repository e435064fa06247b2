"""The matrix product's own gradient, and the embedding's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.model.layers import Embed, matmul
from tests import tiny


@pytest.mark.core
@pytest.mark.parametrize("output_dtype", ["float32", "bfloat16"])
def test_matmul_has_the_gradients_of_jnp_matmul(output_dtype: str) -> None:
    random = np.random.default_rng(0)
    dtype = jnp.dtype("bfloat16" if output_dtype == "bfloat16" else "float32")
    x, kernel = (jnp.asarray(random.standard_normal(shape), dtype) for shape in ((3, 5, 8), (8, 6)))
    output, pull = jax.vjp(lambda x, kernel: matmul(x, kernel, jnp.dtype(output_dtype)), x, kernel)
    expected, expected_pull = jax.vjp(jnp.matmul, x, kernel)
    tolerance = 2e-2 if output_dtype == "bfloat16" else 1e-6
    for ours, plain in zip((output, *pull(output)), (expected, *expected_pull(expected)), strict=True):
        assert ours.dtype == plain.dtype
        np.testing.assert_allclose(np.float32(ours), np.float32(plain), rtol=tolerance, atol=tolerance)


@pytest.mark.core
def test_embedding_of_two_inputs_has_the_gradient_of_two_gathers() -> None:
    embed = Embed(tiny.model(vocab_size=11, emb_dim=4))
    first, second = jnp.array([[1, 2, 2], [0, 1, 10]]), jnp.array([[2, 5], [1, 1]])
    params = embed.init(jax.random.key(3), first)

    def together(params, sign):
        x, y = embed.apply(params, first, second, method=Embed.both)
        return jnp.sum(jnp.sin(x)) + sign * jnp.sum(jnp.square(y))

    def apart(params, sign):
        return jnp.sum(jnp.sin(embed.apply(params, first))) + sign * jnp.sum(jnp.square(embed.apply(params, second)))

    for ours, expected in zip(
        jax.tree.leaves(jax.value_and_grad(together)(params, -2.0)),
        jax.tree.leaves(jax.value_and_grad(apart)(params, -2.0)),
        strict=True,
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)
