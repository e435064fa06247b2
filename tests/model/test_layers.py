"""The matrix product's own gradient, GELU's, and the embedding's."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.model.layers import Embed, gelu, matmul
from tests import tiny


@pytest.mark.core
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_and_its_gradients_are_those_of_float64(dtype: str) -> None:
    """Each element within one rounding of the dtype, as a share of the sum of its terms' sizes."""
    random = np.random.default_rng(0)
    x, kernel = (jnp.asarray(random.standard_normal(shape), dtype) for shape in ((3, 5, 8), (8, 6)))
    output, pull = jax.vjp(lambda x, kernel: matmul(x, kernel, jnp.dtype(dtype)), x, kernel)
    rows, columns, result = (
        np.asarray(array, np.float64) for array in (x.reshape(15, 8), kernel, output.reshape(15, 6))
    )
    pairs = ((rows, columns), (result, columns.T), (rows.T, result))
    for product, (a, b) in zip((output, *pull(output)), pairs, strict=True):
        assert product.dtype == dtype
        error = np.abs(np.asarray(product, np.float64).reshape(a.shape[0], b.shape[1]) - a @ b)
        np.testing.assert_array_less(error, float(jnp.finfo(dtype).eps) * (np.abs(a) @ np.abs(b)))


@pytest.mark.core
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gelu_of_two_bytes_is_float32_s_rounded_once(dtype: str) -> None:
    """Value and derivative; flax rounds its constants and each step, and is off by some places."""
    x = jnp.linspace(-6, 6, 1201).astype(dtype)
    value, pull = jax.vjp(gelu, x)
    (derivative,) = pull(jnp.ones_like(x))
    wide_value, wide_pull = jax.vjp(lambda x: nn.gelu(x, approximate=True), x.astype(jnp.float32))
    (wide_derivative,) = wide_pull(jnp.ones(x.shape))
    half_a_place = float(jnp.finfo(dtype).eps) / 2
    for ours, wide in ((value, wide_value), (derivative, wide_derivative)):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours.astype(jnp.float32), wide, rtol=1.01 * half_a_place, atol=5e-6)
    of_flax = nn.gelu(x, approximate=True).astype(jnp.float32)
    assert not np.allclose(of_flax, wide_value, rtol=1.01 * half_a_place, atol=5e-6)


@pytest.mark.core
def test_gelu_of_float32_is_flax_s_bit_for_bit() -> None:
    x = jnp.linspace(-12, 12, 2401)
    np.testing.assert_array_equal(gelu(x), nn.gelu(x, approximate=True))
    derivatives = [jax.vmap(jax.grad(function))(x) for function in (gelu, nn.gelu)]
    np.testing.assert_array_equal(*derivatives)


@pytest.mark.core
def test_embedding_of_two_inputs_has_the_gradient_of_two_gathers() -> None:
    embed = Embed(tiny.model(vocab_size=11, emb_dim=4))
    first = jnp.array([[1, 2, 2], [0, 1, 10]])
    second = jnp.array([[2, 5], [1, 1]])
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
