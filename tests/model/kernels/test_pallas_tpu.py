"""Attention for TPUs, run by an interpreter, against the plain einsum in float32."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import LossConfig, MeshConfig
from limba.model import Network
from limba.model.kernels.choose import Einsum, PallasTpu, choose
from limba.model.kernels.einsum import dot_product_attention
from limba.model.kernels.pallas_tpu import Plan, pallas_attention
from limba.model.masks import Mask, Rule
from tests import tiny
from tests.model.kernels.test_pallas_gpu import RULES, inputs, outputs_and_gradients, with_rule


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "has_bias", "dtype", "tolerance"),
    [
        (17, 17, False, True, "float32", 1e-5),
        (1000, 1000, True, False, "float32", 1e-5),  # three arrays; four programs, the last one padded
        (29, 128, False, False, "float32", 1e-5),  # cross-attention
        (400, 1024, False, True, "float32", 1e-5),  # two, the last one padded
        (114, 114, True, True, "bfloat16", 8e-3),
        *(
            pytest.param(*shape, 1e-5, marks=pytest.mark.night)
            for shape in (
                (114, 114, True, True, "float32"),
                (229, 229, True, True, "float32"),
                (1024, 1024, True, True, "float32"),  # four programs of 256 queries
                (1024, 512, False, False, "float32"),  # two, of as many queries as there are keys
            )
        ),
    ],
)
@pytest.mark.slow
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
        arrays = tuple(array[:, None] for array in (query, key, value))
        if queries == keys and has_bias:
            arrays = (jnp.stack([query, key, value], 1),)
        elif has_bias or queries != keys:
            arrays = (query[:, None], jnp.stack([key, value], 1))
        return pallas_attention(arrays, bias, mask.for_kernels(), mask.rule, interpret=True)

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


@pytest.mark.parametrize(
    "rule",
    [
        *(rule if rule[0] in (229, 300, 160) else pytest.param(rule, marks=pytest.mark.night) for rule in RULES),
        pytest.param((700, False, False, 33, False), marks=pytest.mark.slow),
        (600, False, True, 128, False),
        pytest.param((1200, False, False, 130, False), marks=pytest.mark.night),
    ],
    ids=str,
)
@pytest.mark.slow
def test_windows_and_tokens_own_masks_give_what_the_einsum_gives(rule: tuple) -> None:
    length, has_bias, *rule = rule
    (query, key, value, diagonals), mask, direction = inputs(2, length, length, 2, 16, False, has_bias, "float32")
    mask = with_rule(mask, *rule)
    pairs = np.arange(length)[None] - np.arange(length)[:, None] + length
    bias = None if diagonals is None else diagonals[:, pairs]
    sees_any = jnp.any(mask.visible(), axis=2)[..., None, None] | (length < 512)  # where all keys are read

    def ours(query, key, value, bias):
        arrays = tuple(array.transpose(0, 2, 3, 1)[:, None] for array in (query, key, value))
        by_key = None if bias is None else jnp.swapaxes(bias, 1, 2)
        attended = pallas_attention(arrays, by_key, mask.for_kernels(), mask.rule, interpret=True)
        return attended.transpose(0, 3, 1, 2)

    def plain(*arrays):
        return jnp.where(sees_any, dot_product_attention(*arrays, mask.visible()), 0)

    results, wanted = (outputs_and_gradients(attend, (query, key, value, bias), direction) for attend in (ours, plain))
    for one, other in zip(results, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(other).max(), rtol=0)


@pytest.mark.slow
def test_blocks_beyond_a_window_are_not_read() -> None:
    """A weight of 0 times NaN would be NaN."""
    (query, key, value, _), _, _ = inputs(2, 640, 640, 1, 16, False, False, "float32")
    ids = jnp.ones((2, 640), jnp.int32)
    mask = Mask(ids, ids, reach=64, everywhere=False)
    arrays = [array.transpose(0, 2, 3, 1)[:, None] for array in (query, key, value.at[:, 512:].set(jnp.nan))]
    attended = pallas_attention(tuple(arrays), None, mask.for_kernels(), mask.rule, interpret=True)
    assert np.isfinite(attended[..., :384]).all() and not np.isfinite(attended[..., 448:]).any()


def test_pallas_attention_refuses_what_its_memory_does_not_hold() -> None:
    assert Plan.of(32, 512, 512, Rule(), False).rows == 2 and Plan.of(32, 114, 114, Rule(True), False).rows == 8
    with pytest.raises(ValueError, match="4096 keys are more than the 2048"):
        Plan.of(1, 128, 4096, Rule(), False)
    config = tiny.model(attention="pallas")
    assert isinstance(choose(config, None, 8, 2048, 2048), PallasTpu)
    assert type(choose(config, None, 8, 4096, 4096)) is Einsum
    assert type(choose(config, tiny.mesh_of(MeshConfig(), 8), 4, 8, 8)) is Einsum  # 4 rows on 8 devices
    windows = dataclasses.replace(OF_ONE_STACK["windows"], attention="pallas", local_attention=(512, 3, 500.0))
    assert isinstance(choose(windows, None, 8, 2048, 2048), PallasTpu)
    wider = dataclasses.replace(windows, local_attention=(514, 3, 500.0))
    assert type(choose(wider, None, 8, 2048, 2048)) is Einsum


@pytest.mark.slow
def test_network_has_the_same_gradients_with_pallas_attention_on_a_mesh() -> None:
    """Examples and heads cut in two, dropout, layers unrolled and rematerialized."""
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "dropout_rate": 0.2}
    plain = tiny.model(attention="einsum", **sizes)
    kernel = tiny.model(attention="pallas", scan_layers=False, remat="minimal", **sizes)
    tiny.assert_same_gradients((plain, MeshConfig(1), LossConfig()), (kernel, MeshConfig(1, 2, 2), LossConfig()))


ENCODER = tiny.language_model(attention_mask="bidirectional", num_decoder_layers=2)
OF_ONE_STACK = {
    "encoder": ENCODER,
    "language model": tiny.language_model(num_decoder_layers=2, dropout_rate=0.2),
    "T5X's decoder": tiny.model(num_encoder_layers=0, num_decoder_layers=2, positions="relative"),
    "windows": dataclasses.replace(ENCODER, local_attention=(2, 2, 500.0), norm="layer_scale"),
}


CAUSAL = "decoder_causal_attention"
OWN_MASKS = {CAUSAL: np.repeat([[1] * 6 + [0] * 4, [0] * 10], 4, axis=0)}


# Each network and each feature lands once with the other's kinds, one of them in every run; the rest of the products
# are of the night.
LANDING = {"language model": "decoder_segment_ids", "windows": "decoder_segment_ids"}


def mark_of(name: str, feature: str) -> list[pytest.MarkDecorator]:
    if feature != LANDING.get(name, CAUSAL):
        return [pytest.mark.night]
    return [] if name == "language model" else [pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        pytest.param(name, feature, marks=mark_of(name, feature))
        for name in OF_ONE_STACK
        for feature in ("decoder_segment_ids", CAUSAL)
    ],
)
@pytest.mark.slow
def test_networks_of_one_stack_have_the_same_gradients_by_the_kernel(name: str, feature: str) -> None:
    """Packed rows, and tokens that say their own mask: a prefix, or rows that are causal."""
    features = tiny.batch() | {"decoder_segment_ids": np.repeat([[1] * 6 + [2] * 4], 8, axis=0)}
    features |= OWN_MASKS if feature in OWN_MASKS else {}
    plain = OF_ONE_STACK[name]
    mesh = MeshConfig(1, 2, 2) if name in ("encoder", "windows") else MeshConfig(1)
    plain = dataclasses.replace(plain, attention="einsum")
    kernel = dataclasses.replace(plain, attention="pallas", remat="minimal")
    program = str(jax.make_jaxpr(Network(kernel).apply)(tiny.parameters(kernel), features))
    assert "pallas_call" in program and ("_mixed" in program) == (feature in OWN_MASKS)
    choices = ((plain, MeshConfig(1), LossConfig()), (kernel, mesh, LossConfig()))
    tiny.assert_same_gradients(*choices, features=features)


@pytest.mark.parametrize(
    ("kind", "chosen"), [("TPU v2", Einsum), ("TPU v3", Einsum), ("TPU v4", PallasTpu), ("TPU v5 lite", PallasTpu)]
)
def test_a_tpu_takes_the_kernel_if_its_compiler_does(kind: str, chosen: type, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(platform="tpu", device_kind=kind)
    monkeypatch.setattr("limba.model.kernels.choose.device_of", lambda mesh: device)
    for attention in ("auto", "pallas"):
        assert type(choose(tiny.model(attention=attention), None, 8, 114, 512)) is chosen
