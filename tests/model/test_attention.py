"""Every way to attend against the plain einsum, and the matrix product's own gradient, in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import LossConfig, MeshConfig
from limba.model.attention import dot_product_attention, implementation
from limba.model.kernels.memory_efficient import memory_efficient_attention
from limba.model.kernels.pallas_tpu import Plan, pallas_attention
from limba.model.layers import matmul
from limba.model.masks import Mask
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


def test_network_has_the_same_gradients_with_memory_efficient_attention() -> None:
    plain, lean = (tiny.model(attention=name, dropout_rate=0.2) for name in ("einsum", "memory_efficient"))
    tiny.assert_same_gradients((plain, MeshConfig(1), LossConfig()), (lean, MeshConfig(1), LossConfig()))


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "has_bias", "dtype", "tolerance"),
    [
        (17, 17, False, True, "float32", 1e-5),
        (114, 114, True, True, "float32", 1e-5),
        (29, 128, False, False, "float32", 1e-5),  # cross-attention
        (229, 229, True, True, "float32", 1e-5),
        (1024, 1024, True, True, "float32", 1e-5),  # four programs of 256 queries
        (400, 1024, False, True, "float32", 1e-5),  # two, the last one padded
        (114, 114, True, True, "bfloat16", 8e-3),
    ],
)
def test_pallas_attention_and_its_gradients_equal_einsum(
    queries: int, keys: int, causal: bool, has_bias: bool, dtype: str, tolerance: float
) -> None:
    random = np.random.default_rng(0)
    batch, heads, width = (3, 2, 16) if queries < 300 else (1, 1, 16)
    query, key, value, direction = (
        jnp.asarray(random.standard_normal((batch, heads, width, length)), jnp.dtype(dtype))
        for length in (queries, keys, keys, queries)
    )
    bias = jnp.asarray(random.standard_normal((heads, keys, queries)), jnp.float32) if has_bias else None
    query_ids, key_ids = (
        jnp.asarray(np.sort(random.integers(0, 3, (batch, length)), axis=1), jnp.int32) for length in (queries, keys)
    )
    if queries == keys:
        key_ids = query_ids
    else:
        key_ids = key_ids.at[0].set(2)  # the queries of the first example see nothing
    mask = Mask(query_ids, key_ids, causal)

    def ours(query, key, value, bias):
        arrays = (
            (jnp.stack([query, key, value], 1),) if queries == keys else (query[:, None], jnp.stack([key, value], 1))
        )
        return pallas_attention(arrays, bias, query_ids, key_ids, causal, interpret=True)

    def plain(*arrays):
        *arrays, bias = (x if x is None else x.astype(jnp.float32) for x in arrays)
        heads_last = (jnp.moveaxis(x, -1, 1) for x in arrays)
        bias = None if bias is None else jnp.swapaxes(bias, 1, 2)
        return jnp.moveaxis(dot_product_attention(*heads_last, bias, mask.visible()), 1, -1)

    def attend_and_pull_back(attend):
        attended, pull = jax.vjp(attend, query, key, value, bias)
        return attended, pull(direction.astype(attended.dtype))

    expected = jax.jit(lambda: attend_and_pull_back(plain))()
    for result, wanted in zip(
        jax.tree.leaves(jax.jit(lambda: attend_and_pull_back(ours))()), jax.tree.leaves(expected), strict=True
    ):
        scale = np.abs(np.float32(wanted)).max()
        np.testing.assert_allclose(np.float32(result) / scale, np.float32(wanted) / scale, atol=tolerance)


def test_pallas_attention_refuses_what_its_memory_does_not_hold() -> None:
    assert Plan.of(32, 512, 512, False, False).rows == 2 and Plan.of(32, 114, 114, True, False).rows == 8
    with pytest.raises(ValueError, match="4096 keys are more than the 2048"):
        Plan.of(1, 128, 4096, False, False)
    assert implementation("pallas", None, 8, 4096, 4096, 4, 32) == "einsum"
    assert implementation("pallas", tiny.mesh_of(MeshConfig(), 8), 4, 8, 8, 4, 32) == "einsum"  # 4 rows on 8 devices


def test_network_has_the_same_gradients_with_pallas_attention_on_a_mesh() -> None:
    """Examples and heads cut in two, dropout, layers unrolled and rematerialized."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "dropout_rate": 0.2}
    plain = tiny.model(attention="einsum", **sizes)
    kernel = tiny.model(attention="pallas", scan_layers=False, remat="minimal", **sizes)
    tiny.assert_same_gradients((plain, MeshConfig(1), LossConfig()), (kernel, MeshConfig(1, 2, 2), LossConfig()))


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
