"""A decoder-only network, one decode step at a time, with a KV cache: same numbers as `LanguageModel`.

Query heads that share keys and values read them directly from the cache, without repetition.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from limba.config import ModelConfig
from limba.model.kernels.einsum import cached_attention, dot_product_attention
from limba.model.language_model import LanguageModelLayer, Stack, every_head
from limba.model.layers import Embed
from limba.model.masks import causal_mask
from limba.model.relative_bias import BiasTable, bias_by_distance, bias_row
from limba.model.stack import apply_module, decode_runner
from limba.model.trees import Cache, DecodeStep, Parameters


def cached_language_model(
    config: ModelConfig, params: Parameters, prompt: Int[Array, "B P"], max_tokens: int, is_prefix: bool = False
) -> tuple[DecodeStep, Cache]:
    """Returns the decode step (cache, last ids, position) -> (logits, cache), and the cache of the prompts.

    Prompts begin with the start id 0; shorter ones are padded with -1 on the left. The cache has all but the last id of
    each, which the first decode step, at `position` 0, reads. It is "key" and "value" [N, B, G, L, C], and "skipped"
    [1, B], the number of places before a prompt. With `is_prefix` and `prefix_attention = 'full'` the ids of a prompt
    attend to all of it, so that the last one is read with the others, and again by the first decode step.
    """
    is_full = is_prefix and config.prefix_attention == "full"
    network = _Network(config, params, prompt.shape[1] - 1 + max_tokens)
    cache = network.read(prompt if is_full else prompt[:, :-1], jnp.sum(prompt < 0, axis=1), is_full)
    first = prompt.shape[1] - 1

    def step(cache: Cache, last: Array, position: Array) -> tuple[Array, Cache]:
        return network.step(cache, last, first + position)

    return step, cache


class _Network:
    """The network's parts with their parameters; the cache has `length` positions."""

    def __init__(self, config: ModelConfig, params: Parameters, length: int):
        self._config, self._params, self._length = config, params, length
        self._run_layers = decode_runner(config, config.num_decoder_layers, params["decoder"]["layers"])
        self._table = params["decoder"]["relpos_bias"]["rel_embedding"] if config.is_t5_decoder else None

    def read(self, tokens: Int[Array, "B P"], skipped: Int[Array, " B"], is_full: bool) -> Cache:
        """Returns the cache with the keys and values of the prompts' ids; the places after them are empty."""
        config, (rows, length) = self._config, tokens.shape
        shape = (config.num_decoder_layers, rows, config.kv_heads, self._length, config.head_dim)
        empty = jnp.zeros(shape, jnp.dtype(config.dtype))
        cache = {"key": empty, "value": empty, "skipped": skipped[None]}
        if not length:
            return cache
        positions = jnp.maximum(jnp.arange(length, dtype=jnp.int32)[None] - skipped[:, None], 0)
        x = self._embedded(jnp.maximum(tokens, 0), positions)
        seen = jnp.ones((1, 1, 1), bool) if is_full else causal_mask(length)
        mask = seen & jnp.broadcast_to((tokens >= 0)[:, None, :], (rows, length, length))
        table = None if self._table is None else BiasTable(self._table, False, config.relpos_max_distance)
        bias = None if table is None else table.pairs(length, length)

        def one_layer(x: Array, layer: Parameters) -> tuple[Array, tuple[Array, Array]]:
            query, key, value = self._apply(layer, "project", x, positions)
            keys, values = (every_head(each, config.num_heads) for each in (key, value))
            attended = dot_product_attention(query, keys, values, bias, mask)
            x = self._apply(layer, "finish", x, attended, True)
            return x, (jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2))

        _, (keys, values) = jax.lax.scan(one_layer, x, self._params["decoder"]["layers"])
        return {
            "key": jax.lax.dynamic_update_slice_in_dim(empty, keys, 0, axis=3),
            "value": jax.lax.dynamic_update_slice_in_dim(empty, values, 0, axis=3),
            "skipped": skipped[None],
        }

    def step(self, cache: Cache, last: Int[Array, " R"], place: Int[Array, ""]) -> tuple[Float[Array, "R V"], Cache]:
        """Returns the logits of the ids after `place`, and the cache with the last ids at `place`."""
        skipped = cache["skipped"][0]
        positions = (place - skipped)[:, None]
        places = jnp.arange(self._length)
        visible = (places[None] <= place) & (places[None] >= skipped[:, None])
        x = self._embedded(last[:, None], positions)
        bias = None if self._table is None else self._bias_row(self._table, place)

        def one_layer(x: Array, cache: Cache, layer: Parameters, index: Array | int) -> tuple[Array, Cache]:
            query, key, value = self._apply(layer, "project", x, positions)
            cache = {
                name: jax.lax.dynamic_update_slice(cache[name], jnp.swapaxes(new, 1, 2)[None], (index, 0, 0, place, 0))
                for name, new in (("key", key), ("value", value))
            }
            attended = _attend(query, cache["key"][index], cache["value"][index], bias, visible)
            return self._apply(layer, "finish", x, attended, True), cache

        x, new = self._run_layers(one_layer, x, {name: cache[name] for name in ("key", "value")})
        return self._logits(x)[:, 0], {**new, "skipped": cache["skipped"]}

    def _bias_row(self, table: Float[Array, "H W"], place: Int[Array, ""]) -> Float[Array, "H 1 L"]:
        by_distance = bias_by_distance(self._config, table, self._length)
        return bias_row(by_distance, place, self._length)

    def _apply(self, layer: Parameters, method: str, *inputs: PyTree) -> PyTree:
        return apply_module(LanguageModelLayer(self._config), layer, *inputs, method=method)

    def _stack(self, method: str, *inputs: Array) -> Array:
        return apply_module(Stack(self._config), self._params["decoder"], *inputs, method=method)

    def _embed(self, method: str, x: Array) -> Array:
        return apply_module(Embed(self._config), self._params["token_embedder"], x, method=method)

    def _embedded(self, ids: Int[Array, "B L"], positions: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        return self._stack("add_positions", self._embed("__call__", ids), positions)

    def _logits(self, x: Float[Array, "R 1 D"]) -> Float[Array, "R 1 V"]:
        x, config = self._stack("finish", x), self._config
        return self._embed("attend", x) * config.tied_logits_scale if config.logits_via_embedding else x


def _attend(
    query: Float[Array, "R 1 H C"],
    key: Float[Array, "R G L C"],
    value: Float[Array, "R G L C"],
    bias: Float[Array, "H 1 L"] | None,
    visible: Bool[Array, "R L"],
) -> Float[Array, "R 1 H C"]:
    """Returns the attention of one query per row; query heads that share a key are treated as several queries."""
    rows, groups, length, width = key.shape
    grouped = query.reshape(rows, groups, -1, width)  # [R, G, H / G, C]
    bias = None if bias is None else bias.reshape(groups, -1, length)
    return cached_attention(grouped, key, value, bias, visible).reshape(query.shape)
