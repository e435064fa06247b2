"""The decoder one token at a time: the same parameters and numbers as `Decoder`, with what was computed before kept.

Kept are the keys and values of self-attention (the cache, which a search copies and reorders) and those of the
encoder's output (made once; the same for all continuations of an input).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from limba.config import ModelConfig
from limba.model.attention import HIDDEN_SCORE
from limba.model.layers import Dense, Embed, MlpBlock, RMSNorm
from limba.model.relative_bias import relative_position_buckets

Parameters = Mapping[str, Any]
Cache = dict[str, Array]  # "key" and "value", each [N, R, H, L, C]
Step = Callable[[Cache, Int[Array, " R"], Int[Array, ""]], tuple[Float[Array, "R V"], Cache]]


def cached_decoder(
    config: ModelConfig, params: Parameters, encoded: Float[Array, "B K D"], inputs: Int[Array, "B K"], max_tokens: int
) -> tuple[Step, Cache]:
    """Returns the step (cache, last ids, position) -> (logits, cache), and an empty cache of one row per input.

    Rows may be several per input, input by input, from the second call on: R is B times any whole number.
    """
    decoder = params["decoder"]
    num_layers, dtype = config.num_decoder_layers, jnp.dtype(config.dtype)
    stacked = {
        "layer": decoder["layers"],
        "memory": jax.vmap(lambda layer: _memory(config, layer, encoded))(decoder["layers"]),
    }
    if config.relative_bias_per_layer:
        tables = decoder["layers"]["relpos_bias"]["rel_embedding"]
        stacked["bias"] = jax.vmap(lambda table: _bias_by_distance(config, table, max_tokens))(tables)
        shared_bias = None
    else:
        shared_bias = _bias_by_distance(config, decoder["relpos_bias"]["rel_embedding"], max_tokens)
    # A slice of a stack is copied before a matrix product on a CPU, which doubles what a token reads: there the
    # layers are cut apart once, before the first token.
    unrolled = not config.scan_layers or jax.default_backend() == "cpu"
    layers = [_slice(stacked, i) for i in range(num_layers)] if unrolled else []
    visible = inputs > 0

    def step(cache: Cache, last: Array, position: Array) -> tuple[Array, Cache]:
        x = _embed(config, params, last)

        def one_layer(x: Array, cache: Cache, parts: Parameters, index: Array | int) -> tuple[Array, Cache]:
            bias = _bias_row(parts.get("bias", shared_bias), position, max_tokens)
            y, cache = _self_attention(config, parts["layer"], x, cache, index, position, bias)
            x = x + y
            x = x + _cross_attention(config, parts["layer"], x, parts["memory"], visible)
            y = _normed(config, parts["layer"]["pre_mlp_layer_norm"], x)
            mlp = MlpBlock(config.mlp_dim, config.mlp_activations, 0.0, dtype)
            return x + mlp.apply({"params": parts["layer"]["mlp"]}, y, True), cache

        if unrolled:
            for index, parts in enumerate(layers):
                x, cache = one_layer(x, cache, parts, index)
        else:
            xs = (stacked, jnp.arange(num_layers))
            (x, cache), _ = jax.lax.scan(lambda carry, xs: (one_layer(*carry, *xs), None), (x, cache), xs)
        return _logits(config, params, x), cache

    shape = (num_layers, encoded.shape[0], config.num_heads, max_tokens, config.head_dim)
    return step, {"key": jnp.zeros(shape, dtype), "value": jnp.zeros(shape, dtype)}


def _slice(stacked: Parameters, index: int) -> Parameters:
    return jax.tree.map(lambda leaf: leaf[index], stacked)


def _embed(config: ModelConfig, params: Parameters, ids: Int[Array, " R"]) -> Float[Array, "R 1 D"]:
    embed = Embed(config.vocab_size, config.emb_dim, jnp.dtype(config.dtype))
    return embed.apply({"params": params["token_embedder"]}, ids[:, None])


def _normed(config: ModelConfig, norm: Parameters, x: Float[Array, "R 1 D"]) -> Float[Array, "R 1 D"]:
    return RMSNorm(config.layer_norm_epsilon, jnp.dtype(config.dtype)).apply({"params": norm}, x)


def _dense(config: ModelConfig, dense: Parameters, x: Array, output_dtype: Any = None) -> Array:
    module = Dense(dense["kernel"].shape[-1], ("", ""), jnp.dtype(config.dtype), output_dtype=output_dtype)
    return module.apply({"params": dense}, x)


def _heads(config: ModelConfig, flat: Float[Array, "R L HC"]) -> Float[Array, "R H L C"]:
    heads = flat.reshape(*flat.shape[:2], config.num_heads, config.head_dim)
    return jnp.swapaxes(heads, 1, 2)


def _memory(config: ModelConfig, layer: Parameters, encoded: Float[Array, "B K D"]) -> Cache:
    """Returns the keys and values of an encoder's output, each [B, H, K, C]."""
    attention = layer["encoder_decoder_attention"]
    return {name: _heads(config, _dense(config, attention[name], encoded)) for name in ("key", "value")}


def _bias_by_distance(config: ModelConfig, table: Float[Array, "H W"], length: int) -> Float[Array, "H L"]:
    """Returns the bias of a key 0, 1, 2, … places before the query."""
    buckets = relative_position_buckets(
        -np.arange(length),
        bidirectional=False,
        num_buckets=config.num_relpos_buckets,
        max_distance=config.relpos_max_distance,
    )
    return table[:, buckets]


def _bias_row(by_distance: Float[Array, "H L"], position: Int[Array, ""], length: int) -> Float[Array, "H L"]:
    """Returns [h, k] = by_distance[h, position - k]; behind the position, what the mask hides."""
    ahead = jnp.pad(jnp.flip(by_distance, axis=1), ((0, 0), (0, length)))
    return jax.lax.dynamic_slice_in_dim(ahead, length - 1 - position, length, axis=1)


def _attend(
    query: Float[Array, "B H Q C"],
    key: Float[Array, "B H K C"],
    value: Float[Array, "B H K C"],
    bias: Float[Array, "H K"] | None,
    mask: Bool[Array, "B K"],
) -> Float[Array, "B H Q C"]:
    """The arithmetic of `attention.dot_product_attention`, heads first: a cache is then read as it lies."""
    scores = jnp.einsum("bhqc,bhkc->bhqk", query, key, preferred_element_type=jnp.float32)
    if bias is not None:
        scores = scores + bias[None, :, None]
    scores = jnp.where(mask[:, None, None], scores, HIDDEN_SCORE)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bhqk,bhkc->bhqc", weights.astype(value.dtype), value)


def _self_attention(
    config: ModelConfig,
    layer: Parameters,
    x: Float[Array, "R 1 D"],
    cache: Cache,
    index: Array | int,
    position: Int[Array, ""],
    bias: Float[Array, "H L"],
) -> tuple[Float[Array, "R 1 D"], Cache]:
    y = _normed(config, layer["pre_self_attention_layer_norm"], x)
    attention = layer["self_attention"]
    query, key, value = (_heads(config, _dense(config, attention[name], y)) for name in ("query", "key", "value"))
    cache = {
        name: jax.lax.dynamic_update_slice(cache[name], new[None], (index, 0, 0, position, 0))
        for name, new in (("key", key), ("value", value))
    }
    keys, values = (jax.lax.dynamic_index_in_dim(cache[name], index, keepdims=False) for name in ("key", "value"))
    mask = jnp.broadcast_to(jnp.arange(keys.shape[2]) <= position, (x.shape[0], keys.shape[2]))
    attended = _attend(query, keys, values, bias, mask)
    return _dense(config, attention["out"], attended.reshape(x.shape[0], 1, -1)), cache


def _cross_attention(
    config: ModelConfig, layer: Parameters, x: Float[Array, "R 1 D"], memory: Cache, visible: Bool[Array, "B K"]
) -> Float[Array, "R 1 D"]:
    """The rows of an input ask its memory together, as so many queries."""
    y = _normed(config, layer["pre_cross_attention_layer_norm"], x)
    attention = layer["encoder_decoder_attention"]
    inputs = visible.shape[0]
    query = _dense(config, attention["query"], y.reshape(inputs, -1, y.shape[-1]))
    attended = _attend(_heads(config, query), memory["key"], memory["value"], None, visible)
    joined = jnp.swapaxes(attended, 1, 2).reshape(*x.shape[:2], -1)
    return _dense(config, attention["out"], joined)


def _logits(config: ModelConfig, params: Parameters, x: Float[Array, "R 1 D"]) -> Float[Array, "R V"]:
    x = _normed(config, params["decoder"]["decoder_norm"], x)
    if config.logits_via_embedding:
        embed = Embed(config.vocab_size, config.emb_dim, jnp.dtype(config.dtype))
        tied = embed.apply({"params": params["token_embedder"]}, x, method=Embed.attend)
        return tied[:, 0] / jnp.sqrt(jnp.float32(config.emb_dim))
    return _dense(config, params["decoder"]["logits_dense"], x, jnp.dtype("float32"))[:, 0]
