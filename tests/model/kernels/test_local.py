"""Attention within a window, in blocks, against all scores with those beyond it hidden."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import LossConfig, MeshConfig
from limba.model import Network
from limba.model.kernels import local
from limba.model.kernels.einsum import dot_product_attention
from limba.model.kernels.local import local_attention
from tests import tiny
from tests.tiny import MODERN, masked_batch, noisy_parameters

LONG = dataclasses.replace(MODERN, local_attention=(4, 3, 500.0))


def packed(rows: int, length: int) -> np.ndarray:
    """Rows of several documents, of which the last tokens are padding, as a mask [B, L, L]; one row is causal."""
    random = np.random.default_rng(2)
    ids = np.sort(random.integers(1, 5, (rows, length)))
    ids[:, length - 3 :] = 0
    mask = (ids[:, :, None] == ids[:, None]) & (ids > 0)[:, :, None]
    mask[0] &= np.tril(np.ones((length, length), bool))
    return mask


@pytest.mark.parametrize(("length", "window"), [(64, 16), (67, 8), (33, 2), (40, 10)])
def test_it_equals_all_scores_with_gradients_packed_and_padded(length: int, window: int) -> None:
    random = np.random.default_rng(0)
    query, key, value, direction = random.standard_normal((4, 2, length, 3, 8)).astype(np.float32)
    query *= np.float32(8**-0.5)
    mask = packed(2, length)
    direction[~mask.any(axis=2)] = 0  # padding has no loss
    places = np.arange(length)
    near = np.abs(places[:, None] - places) <= window // 2

    @functools.partial(jax.jit, static_argnums=0)
    def of(attend, *heads):
        attended, pull = jax.vjp(attend, *heads)
        return attended, pull(jnp.asarray(direction))

    visible = jnp.asarray(mask)
    ours = of(lambda q, k, v: local_attention(q, k, v, visible, window), query, key, value)
    whole = of(
        lambda q, k, v: dot_product_attention(q, k, v, None, visible & jnp.asarray(near)[None]), query, key, value
    )
    real = mask.any(axis=2)
    np.testing.assert_allclose(ours[0][real], whole[0][real], atol=1e-6, rtol=1e-6)
    for one, other in zip(ours[1], whole[1], strict=True):
        assert np.abs(other).max() > 0.1
        np.testing.assert_allclose(one, other, atol=1e-6 * np.abs(other).max(), rtol=1e-6)


@pytest.mark.parametrize("changes", [{}, {"scan_layers": False}, {"attention": "memory_efficient", "remat": "full"}])
@pytest.mark.slow
def test_long_rows_of_a_network_are_those_of_all_scores(changes: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(LONG, **changes)
    features = masked_batch(2, 30)
    features["decoder_segment_ids"] = np.array([[1] * 11 + [2] * 15 + [0] * 4, [1] * 30], np.int32)
    features["decoder_target_tokens"][0, 26:] = 0
    real = features["decoder_segment_ids"] > 0

    def of() -> tuple[np.ndarray, Any]:
        def loss(params, batch):
            logits = Network(config).apply(params, batch)
            return jnp.sum(jnp.where(jnp.asarray(real)[..., None], jnp.sin(logits), 0.0)), logits

        gradient, values = jax.jit(jax.grad(loss, has_aux=True))(noisy_parameters(config), features)
        return np.asarray(values), gradient

    assert local.fits(30, 4) and not local.fits(15, 4)
    blocks = of()
    monkeypatch.setattr(local, "SHORTEST", 100)
    whole = of()
    np.testing.assert_allclose(blocks[0][real], whole[0][real], atol=1e-5)
    same = lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5 * max(1, np.abs(other).max()))
    jax.tree.map(same, blocks[1], whole[1])


@pytest.mark.slow
def test_eight_devices_equal_one() -> None:
    tiny.assert_same_gradients(*((LONG, mesh, LossConfig()) for mesh in (MeshConfig(data=1), MeshConfig(2, 2, 2))))


def test_scores_grow_with_the_row_and_not_with_its_square() -> None:
    """Counted by XLA: of one layer of a window, of rows of 1,024 and 2,048 tokens."""

    def flops(length: int) -> float:
        heads = jax.ShapeDtypeStruct((1, length, 1, 64), jnp.float32)
        mask = jax.ShapeDtypeStruct((1, length, length), jnp.bool_)
        compiled = jax.jit(lambda q, k, v, seen: local_attention(q, k, v, seen, 128)).lower(heads, heads, heads, mask)
        costs: Any = compiled.compile().cost_analysis()
        return costs["flops"]

    short = flops(1024)
    long = flops(2048)
    assert 1.9 < long / short < 2.1
    assert long < 2048 * 192 * (2 * 2 * 64 + 20)
