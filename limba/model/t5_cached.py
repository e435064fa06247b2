"""A T5's decoder, one decode step at a time, with a KV cache: same parameters and numbers as the `Stack` of `t5.py`.

The cache holds the keys and values of self-attention; a search copies and reorders it. The keys and values of the
encoder's output are computed once, the same for all continuations of an input.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from limba.config import ModelConfig
from limba.model.decode_stack import decode_runner, extend_cache, stack_cache, with_kernel_rows
from limba.model.kernels.einsum import cached_attention
from limba.model.layers import KERNEL_ROWS, Embed, MlpBlock, dense, dense_by_rows, logits_dense, norm
from limba.model.relative_bias import bias_by_distance, bias_row
from limba.model.stack import Method, apply_module
from limba.model.trees import Cache, DecodeStep, Parameters


def cached_decoder(
    config: ModelConfig,
    params: Parameters,
    encoded: Float[Array, "B K D"],
    inputs: Int[Array, "B K"],
    max_tokens: int,
    by_rows: bool = False,
) -> tuple[DecodeStep, Cache]:
    """Returns the decode step (cache, last ids, position) -> (logits, cache), and an empty cache of one row per input.

    Of `inputs` only the padding is read, which is 0. From the second call on an input may have several adjacent rows: R
    is a multiple of B.
    """
    decoder = params["decoder"]
    num_layers = config.num_decoder_layers
    dtype = jnp.dtype(config.dtype)
    memory = jax.vmap(lambda layer: _memory(config, layer, encoded))(decoder["layers"])
    stacked = {"layer": decoder["layers"], "memory": memory}
    if config.relative_bias_per_layer:
        tables = decoder["layers"]["relpos_bias"]["rel_embedding"]
        stacked["bias"] = jax.vmap(lambda table: bias_by_distance(config, table, max_tokens))(tables)
        shared_bias = None
    else:
        shared_bias = bias_by_distance(config, decoder["relpos_bias"]["rel_embedding"], max_tokens)
    run_layers = decode_runner(config, num_layers, stacked, by_rows)
    visible = inputs > 0
    head = decoder.get("logits_dense", {})
    if by_rows:
        head = with_kernel_rows(head, dtype)

    def step(cache: Cache, last: Array, position: Array) -> tuple[Array, Cache]:
        def one_layer(x: Array, cache: Cache, parts: Parameters, index: Array | None) -> tuple[Array, Cache]:
            bias = bias_row(parts.get("bias", shared_bias), position, max_tokens)
            y, cache = _self_attention(config, parts["layer"], x, cache, index, position, bias)
            x = x + y
            x = x + _cross_attention(config, parts["layer"], x, parts["memory"], visible)
            y = apply_module(norm(config), parts["layer"]["pre_mlp_layer_norm"], x)
            return x + apply_module(MlpBlock(config), parts["layer"]["mlp"], y, True), cache

        x, cache = run_layers(one_layer, _embed(config, params, last[:, None]), cache)
        return _logits(config, params, head, x, by_rows), cache

    shape = (num_layers, encoded.shape[0], config.num_heads, max_tokens, config.head_dim)
    empty = jnp.zeros(shape, dtype)
    return step, stack_cache(config, empty, empty)


def _embed(config: ModelConfig, params: Parameters, x: Array, method: Method = None) -> Array:
    return apply_module(Embed(config), params["token_embedder"], x, method=method)


def _dense(config: ModelConfig, params: Parameters, x: Array) -> Array:
    if KERNEL_ROWS in params:
        return dense_by_rows(x, params[KERNEL_ROWS])
    return dense(x, params["kernel"].astype(config.dtype))


def _heads(config: ModelConfig, flat: Float[Array, "R L W"]) -> Float[Array, "R H L C"]:
    heads = flat.reshape(*flat.shape[:2], config.num_heads, config.head_dim)
    return jnp.swapaxes(heads, 1, 2)


def _memory(config: ModelConfig, layer: Parameters, encoded: Float[Array, "B K D"]) -> Parameters:
    """Returns the keys and values of the encoder's output, each [B, H, K, C]."""
    attention = layer["encoder_decoder_attention"]
    return {name: _heads(config, _dense(config, attention[name], encoded)) for name in ("key", "value")}


def _self_attention(
    config: ModelConfig,
    layer: Parameters,
    x: Float[Array, "R 1 D"],
    cache: Cache,
    index: Array | None,
    position: Int[Array, ""],
    bias: Float[Array, "H 1 L"],
) -> tuple[Float[Array, "R 1 D"], Cache]:
    y = apply_module(norm(config), layer["pre_self_attention_layer_norm"], x)
    attention = layer["self_attention"]
    query, key, value = (_heads(config, _dense(config, attention[name], y)) for name in ("query", "key", "value"))
    cache, keys, values = extend_cache(cache, key, value, position, index)
    mask = jnp.broadcast_to(jnp.arange(keys.shape[2]) <= position, (x.shape[0], keys.shape[2]))
    attended = cached_attention(query, keys, values, bias, mask)
    return _dense(config, attention["out"], attended.reshape(x.shape[0], 1, -1)), cache


def _cross_attention(
    config: ModelConfig, layer: Parameters, x: Float[Array, "R 1 D"], memory: Parameters, visible: Bool[Array, "B K"]
) -> Float[Array, "R 1 D"]:
    """Returns the attention to the encoder's output. The rows of an input attend together, as that many queries."""
    y = apply_module(norm(config), layer["pre_cross_attention_layer_norm"], x)
    attention = layer["encoder_decoder_attention"]
    query = _dense(config, attention["query"], y.reshape(visible.shape[0], -1, y.shape[-1]))
    attended = cached_attention(_heads(config, query), memory["key"], memory["value"], None, visible)
    joined = jnp.swapaxes(attended, 1, 2).reshape(*x.shape[:2], -1)
    return _dense(config, attention["out"], joined)


def _logits(
    config: ModelConfig, params: Parameters, head: Parameters, x: Float[Array, "R 1 D"], by_rows: bool
) -> Float[Array, "R V"]:
    x = apply_module(norm(config), params["decoder"]["decoder_norm"], x)
    if config.logits_via_embedding:
        attend = Embed.attend_by_rows if by_rows else Embed.attend
        return _embed(config, params, x, attend)[:, 0] / jnp.sqrt(jnp.float32(config.emb_dim))
    return apply_module(logits_dense(config), head, x)[:, 0]
