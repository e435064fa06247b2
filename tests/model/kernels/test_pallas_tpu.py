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
from limba.model.masks import Mask
from tests import tiny


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "has_bias", "dtype", "tolerance"),
    [
        (17, 17, False, True, "float32", 1e-5),
        (1000, 1000, True, False, "float32", 1e-5),  # three arrays; four programs, the last one padded
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
        arrays = tuple(each[:, None] for each in (query, key, value))
        if queries == keys and has_bias:
            arrays = (jnp.stack([query, key, value], 1),)
        elif has_bias or queries != keys:
            arrays = (query[:, None], jnp.stack([key, value], 1))
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
    config = tiny.model(attention="pallas")
    assert isinstance(choose(config, None, 8, 2048, 2048), PallasTpu)
    assert type(choose(config, None, 8, 4096, 4096)) is Einsum
    assert type(choose(config, tiny.mesh_of(MeshConfig(), 8), 4, 8, 8)) is Einsum  # 4 rows on 8 devices


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
    "windows": dataclasses.replace(ENCODER, num_decoder_layers=4, local_attention=(2, 3, 500.0), norm="layer_scale"),
}


@pytest.mark.parametrize("name", OF_ONE_STACK)
def test_networks_of_one_stack_have_the_same_gradients(name: str) -> None:
    plain, mesh = OF_ONE_STACK[name], MeshConfig(1, 2, 2) if name == "encoder" else MeshConfig(1)
    plain = dataclasses.replace(plain, attention="einsum")
    kernel = dataclasses.replace(plain, attention="pallas", remat="minimal")
    tiny.assert_same_gradients((plain, MeshConfig(1), LossConfig()), (kernel, mesh, LossConfig()))


@pytest.mark.parametrize(
    ("name", "feature", "takes_it"),
    [
        ("encoder", "decoder_segment_ids", True),
        ("language model", "decoder_segment_ids", True),
        ("windows", "decoder_segment_ids", True),
        ("encoder", "decoder_causal_attention", False),  # rows that say their own mask
        ("language model", "decoder_causal_attention", False),  # a prefix
        ("short rows", "decoder_segment_ids", False),
    ],
)
def test_masks_of_whole_examples_take_the_kernel(name: str, feature: str, takes_it: bool) -> None:
    config = OF_ONE_STACK.get(name) or dataclasses.replace(OF_ONE_STACK["windows"], local_attention=(4, 3, 500.0))
    network = Network(dataclasses.replace(config, attention="pallas"))
    features = tiny.batch() | {feature: np.repeat([[1] * 4 + [2] * 3 + [3] * 3], 8, axis=0)}
    program = str(jax.make_jaxpr(network.apply)(tiny.parameters(config), features))
    assert ("pallas_call" in program) == takes_it


@pytest.mark.parametrize(
    ("kind", "chosen"), [("TPU v2", Einsum), ("TPU v3", Einsum), ("TPU v4", PallasTpu), ("TPU v5 lite", PallasTpu)]
)
def test_a_tpu_takes_the_kernel_if_its_compiler_does(kind: str, chosen: type, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(platform="tpu", device_kind=kind)
    monkeypatch.setattr("limba.model.kernels.choose.device_of", lambda mesh: device)
    for attention in ("auto", "pallas"):
        assert type(choose(tiny.model(attention=attention), None, 8, 114, 512)) is chosen
