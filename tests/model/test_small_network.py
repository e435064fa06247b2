"""An encoder-decoder of one layer of width 16 against its formulas in float64, and the parts of a layer alone."""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import ModelConfig
from limba.formats.names import flatten
from limba.model import Network
from limba.model.attention import Attention, query_init
from limba.model.kernels.choose import choose
from limba.model.layers import Dense, Dropout, Embed, LayerNorm, MlpBlock, RMSNorm, attention_init, kernel_init, norm
from limba.model.masks import Mask
from tests import tiny

pytestmark = pytest.mark.core
SMALL = tiny.model(
    vocab_size=40, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=1,
    scan_layers=False,
)  # fmt: skip
PACKED = {
    "encoder_input_tokens": [[5, 9, 1, 7, 1, 0], [3, 4, 8, 39, 2, 1]],
    "encoder_segment_ids": [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]],
    "decoder_input_tokens": [[0, 6, 0, 8, 11], [0, 12, 13, 0, 0]],
    "decoder_target_tokens": [[6, 1, 8, 11, 1], [12, 13, 1, 0, 0]],
    "decoder_segment_ids": [[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]],
}


def normed(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * scale


def activated(name: str, x: np.ndarray) -> np.ndarray:
    if name == "gelu":
        return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return {"relu": np.maximum(x, 0), "silu": x / (1 + np.exp(-x)), "linear": x}[name]


def attended(p: dict, name: str, x: np.ndarray, memory: np.ndarray, sees: np.ndarray, bias: Any = 0.0) -> np.ndarray:
    """Raffel et al. 2020, section 2.1: no 1/sqrt(width), the bias added to the products."""
    heads = [
        array.reshape(*array.shape[:2], 2, 8).swapaxes(1, 2)
        for array in (x @ p[f"{name}/query"], memory @ p[f"{name}/key"], memory @ p[f"{name}/value"])
    ]
    scores = np.where(sees[:, None], np.exp(heads[0] @ heads[1].swapaxes(2, 3) + bias), 0.0)
    shares = scores / np.maximum(scores.sum(-1, keepdims=True), 1e-30)
    return (shares @ heads[2]).swapaxes(1, 2).reshape(x.shape) @ p[f"{name}/out"]


def mlp(p: dict, name: str, config: ModelConfig, x: np.ndarray) -> np.ndarray:
    names = ("wi",) if len(config.mlp_activations) == 1 else ("wi_0", "wi_1")
    branches = [activated(a, x @ p[f"{name}/{n}"]) for a, n in zip(config.mlp_activations, names, strict=True)]
    return math.prod(branches) @ p[f"{name}/wo"]


def position_bias(table: np.ndarray, length: int, bidirectional: bool) -> np.ndarray:
    """Near distances have a bucket each; the encoder's second half is of the keys that follow."""
    distance = np.arange(length) - np.arange(length)[:, None]
    bucket = np.abs(distance) + 16 * (distance > 0) if bidirectional else np.maximum(-distance, 0)
    return table[:, bucket]


def logits_of(config: ModelConfig, params: Any, batch: dict[str, np.ndarray]) -> np.ndarray:
    p: dict[str, np.ndarray] = {}
    for name, parameter in flatten(params).items():
        array = np.asarray(parameter, np.float64)
        if "layers" in name and name.endswith("kernel"):
            array = array.reshape(array.shape[-2:])
        elif name.endswith("scale"):
            array = array.reshape(array.shape[-1:])
        p[name.removesuffix("/kernel").removesuffix("/scale")] = array
    inputs, targets = (batch[f"{name}_tokens"] for name in ("encoder_input", "decoder_target"))
    own_ids, theirs = (
        np.where(tokens > 0, batch.get(f"{side}_segment_ids", 1), 0)
        for side, tokens in (("decoder", targets), ("encoder", inputs))
    )

    def same(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return (queries[:, :, None] == keys[:, None]) & (queries[:, :, None] > 0)

    table = p["token_embedder/embedding"]
    x = table[inputs]
    layer = "encoder/layers"
    bias = position_bias(p["encoder/relpos_bias/rel_embedding"], x.shape[1], True)
    y = normed(x, p[f"{layer}/pre_attention_layer_norm"])
    x = x + attended(p, f"{layer}/attention", y, y, same(theirs, theirs), bias)
    x = x + mlp(p, f"{layer}/mlp", config, normed(x, p[f"{layer}/pre_mlp_layer_norm"]))
    encoded = normed(x, p["encoder/encoder_norm"])

    x = table[batch["decoder_input_tokens"]]
    layer = "decoder/layers"
    bias = position_bias(p["decoder/relpos_bias/rel_embedding"], x.shape[1], False)
    y = normed(x, p[f"{layer}/pre_self_attention_layer_norm"])
    sees = same(own_ids, own_ids) & np.tri(x.shape[1], dtype=bool)
    x = x + attended(p, f"{layer}/self_attention", y, y, sees, bias)
    y = normed(x, p[f"{layer}/pre_cross_attention_layer_norm"])
    x = x + attended(p, f"{layer}/encoder_decoder_attention", y, encoded, same(own_ids, theirs))
    x = x + mlp(p, f"{layer}/mlp", config, normed(x, p[f"{layer}/pre_mlp_layer_norm"]))
    x = normed(x, p["decoder/decoder_norm"])
    return x @ (table.T / 4 if config.logits_via_embedding else p["decoder/logits_dense"])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{}, {"mlp_activations": ("relu",), "logits_via_embedding": True}, {"mlp_activations": ("silu", "linear")}],
    ids=["t5_1_1", "t5_1_0", "silu"],
)
def test_logits_are_the_formulas(changes: dict[str, Any], packed: bool) -> None:
    config = dataclasses.replace(SMALL, **changes)
    batch = {name: np.array(array) for name, array in PACKED.items() if packed or "segment" not in name}
    params = tiny.parameters(config)
    logits = jax.jit(Network(config).apply)(params, jax.tree.map(jnp.asarray, batch))
    real = batch["decoder_target_tokens"] > 0
    np.testing.assert_allclose(logits[real], logits_of(config, params, batch)[real], rtol=2e-5, atol=2e-5)


def test_norms_are_their_formulas() -> None:
    random = np.random.default_rng(0)
    x, scale, bias = (random.standard_normal(shape) for shape in ((2, 3, 8), 8, 8))
    x = x * 0.1 + 0.05
    params = {"scale": jnp.float32(scale), "bias": jnp.float32(bias)}
    output: Any = LayerNorm(0.01, jnp.dtype("float32")).apply({"params": params}, jnp.float32(x))
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.01) * scale + bias
    np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6)
    output = RMSNorm(0.01, jnp.dtype("float32")).apply({"params": {"scale": jnp.float32(scale)}}, jnp.float32(x))
    wanted = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 0.01) * scale
    np.testing.assert_allclose(output, wanted, rtol=1e-5, atol=1e-6)
    decoder = tiny.language_model(norm="layer", layer_norm_epsilon=0.03)
    assert isinstance(norm(decoder), LayerNorm) and norm(decoder).epsilon == 0.03
    assert isinstance(norm(SMALL), RMSNorm) and norm(SMALL).epsilon == 1e-6


@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6)])
def test_a_dense_layer_adds_its_bias(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x, kernel, bias = (random.standard_normal(size) for size in (shape, (6, 5), (5,)))
    params = {"kernel": jnp.float32(kernel), "bias": jnp.float32(bias)}
    layer = Dense(5, ("embed", "mlp"), jnp.dtype("float32"), has_bias=True)
    np.testing.assert_allclose(layer.apply({"params": params}, jnp.float32(x)), x @ kernel + bias, rtol=1e-5, atol=1e-6)
    plain = Dense(5, ("embed", "mlp"), jnp.dtype("float32"))
    np.testing.assert_allclose(plain.apply({"params": params}, jnp.float32(x)), x @ kernel, rtol=1e-5, atol=1e-6)
    assert set(nn.Module.init(plain, jax.random.key(0), jnp.float32(x))["params"]) == {"kernel"}


def test_biases_are_where_the_configuration_says() -> None:
    for biases in ((), ("mlp",), ("logits",)):
        config = tiny.language_model(emb_dim=16, mlp_dim=24, biases=biases)
        shapes = jax.eval_shape(
            lambda config=config: MlpBlock(config).init(jax.random.key(0), jnp.ones((1, 2, 16)), True)
        )
        names = {name for name in flatten(shapes["params"]) if name.endswith("bias")}
        assert names == ({f"{part}/bias" for part in ("wi_0", "wi_1", "wo")} if "mlp" in biases else set())
        whole = flatten(jax.eval_shape(Network(config).init, jax.random.key(0)))
        assert ("decoder/logits_dense/bias" in whole) == ("logits" in biases)


def test_dropout_leaves_out_whole_channels_of_a_sequence() -> None:
    x = jnp.ones((3, 5, 64))
    output = np.asarray(Dropout(0.75).apply({}, x, False, rngs={"dropout": jax.random.key(0)}))
    assert set(np.unique(output)) == {0.0, 4.0}
    assert (output == output[:, :1]).all() and not (output == output[:1]).all()
    assert 0.15 < (output > 0).mean() < 0.35
    np.testing.assert_array_equal(Dropout(0.75).apply({}, x, True), x)


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_dropout_of_attention_is_that_of_the_values(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One draw for a key's values in each head, and what is kept is divided by its share."""
    config = dataclasses.replace(SMALL, dropout_rate=rate)
    random = np.random.default_rng(0)
    asked = []
    kept = random.integers(0, 2, (2, 5, 2, 1)).astype(bool)
    monkeypatch.setattr(
        jax.random, "bernoulli", lambda key, share, shape: asked.append((share, shape)) or jnp.asarray(kept)
    )
    x, memory = (jnp.float32(random.standard_normal((2, length, 16))) for length in (3, 5))
    kernels = {name: random.standard_normal((16, 16)) / 4 for name in ("query", "key", "value", "out")}
    params = {"params": {name: {"kernel": jnp.float32(kernel)} for name, kernel in kernels.items()}}
    mask = Mask(jnp.ones((2, 3), jnp.int32), jnp.ones((2, 5), jnp.int32))
    attend = choose(config, None, 2, 3, 5)
    for deterministic in (True, False):
        output = Attention(config).apply(
            params,
            x,
            memory,
            attend,
            None,
            mask,
            deterministic,
            rngs={} if deterministic else {"dropout": jax.random.key(0)},
        )
        p = {f"a/{name}": kernel for name, kernel in kernels.items()}
        drops = rate > 0 and not deterministic
        heads = [
            np.asarray(array, np.float64).reshape(2, -1, 2, 8).swapaxes(1, 2)
            for array in (x @ p["a/query"], memory @ p["a/key"], memory @ p["a/value"])
        ]
        scores = np.exp(heads[0] @ heads[1].swapaxes(2, 3))
        values = heads[2] * (kept.swapaxes(1, 2) / (1 - rate) if drops else 1)
        shares = scores / scores.sum(-1, keepdims=True)
        wanted = (shares @ values).swapaxes(1, 2).reshape(2, 3, 16) @ p["a/out"]
        np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)
    assert asked == ([(1 - rate, (2, 5, 2, 1))] if rate else [])


def test_initial_values_have_the_deviations_of_t5() -> None:
    """Raffel et al.'s Mesh TensorFlow and T5X: 1/sqrt(inputs), queries also over sqrt(width), embeddings 1."""
    shape = (64, 256)
    for init, deviation in ((kernel_init, 1 / 8), (attention_init, 1 / 8), (query_init(16), 1 / 32)):
        values = np.asarray(init(jax.random.key(0), shape, jnp.float32))
        assert values.std() == pytest.approx(deviation, rel=0.03) and abs(values.mean()) < deviation / 20
    for config, deviation in (
        (tiny.model(emb_dim=64), 1.0),
        (tiny.model(emb_dim=64, logits_via_embedding=True), 1.0),
        (tiny.language_model(emb_dim=64), 1.0),
        (tiny.language_model(emb_dim=64, logits_via_embedding=True), 1 / 8),
    ):
        table = Embed(config).init(jax.random.key(0), jnp.ones((1, 1), jnp.int32))["params"]["embedding"]
        assert np.asarray(jax.tree.leaves(table)[0]).std() == pytest.approx(deviation, rel=0.03)
