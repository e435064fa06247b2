"""A decoder-only network token by token: the same parameters and numbers as `LanguageModel`, with keys and values kept.

Queries that share keys and values read the cache as it lies: nothing is repeated.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from limba.config import ModelConfig
from limba.model.attention import HIDDEN_SCORE, attend
from limba.model.language_model import LanguageModelLayer, Stack, every_head
from limba.model.layers import Embed
from limba.model.masks import causal_mask
from limba.model.t5_cached import Cache, Parameters, Step


def cached_language_model(
    config: ModelConfig, params: Parameters, prompt: Int[Array, "B P"], max_tokens: int
) -> tuple[Step, Cache]:
    """Returns the step (cache, last ids, position) -> (logits, cache), and the cache of all but the prompts' last ids.

    Prompts begin with the start id 0 and end together, with -1 before shorter ones. `position` is 0 at their last
    id. The cache is "key" and "value" [N, B, G, L, C], and "skipped" [1, B], the places before a prompt.
    """
    network = _Network(config, params, prompt.shape[1] - 1 + max_tokens)
    cache = network.read(prompt[:, :-1], jnp.sum(prompt < 0, axis=1))
    first = prompt.shape[1] - 1

    def step(cache: Cache, last: Array, position: Array) -> tuple[Array, Cache]:
        return network.step(cache, last, first + position)

    return step, cache


class _Network:
    """The network's parts with their parameters; `length` places are kept."""

    def __init__(self, config: ModelConfig, params: Parameters, length: int):
        self._config, self._params, self._length = config, params, length
        layers = params["decoder"]["layers"]
        # As in `decode`: on a CPU a slice of a stack is copied before each product, so it is cut once.
        self._unrolled = not config.scan_layers or jax.default_backend() == "cpu"
        self._stacked = layers
        count = range(config.num_decoder_layers) if self._unrolled else ()
        self._layers = [jax.tree.map(lambda leaf, i=i: leaf[i], layers) for i in count]

    def read(self, tokens: Int[Array, "B P"], skipped: Int[Array, " B"]) -> Cache:
        """Returns the keys and values of the prompts' ids, room behind them."""
        config, (rows, length) = self._config, tokens.shape
        shape = (config.num_decoder_layers, rows, config.kv_heads, self._length, config.head_dim)
        empty = jnp.zeros(shape, jnp.dtype(config.dtype))
        cache = {"key": empty, "value": empty, "skipped": skipped[None]}
        if not length:
            return cache
        positions = jnp.maximum(jnp.arange(length, dtype=jnp.int32)[None] - skipped[:, None], 0)
        x = self._embedded(jnp.maximum(tokens, 0), positions)
        mask = causal_mask(length) & (tokens >= 0)[:, None, :]

        def one_layer(x: Array, layer: Parameters) -> tuple[Array, tuple[Array, Array]]:
            query, key, value = self._apply(layer, "project", x, positions)
            whole = (every_head(each, config.num_heads) for each in (key, value))
            x = self._apply(layer, "finish", x, attend("einsum", None, query, *whole, mask), True)
            return x, (jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2))

        _, (keys, values) = jax.lax.scan(one_layer, x, self._stacked)
        return {
            "key": jax.lax.dynamic_update_slice_in_dim(empty, keys, 0, axis=3),
            "value": jax.lax.dynamic_update_slice_in_dim(empty, values, 0, axis=3),
            "skipped": skipped[None],
        }

    def step(self, cache: Cache, last: Int[Array, " R"], place: Int[Array, ""]) -> tuple[Float[Array, "R V"], Cache]:
        """Returns the logits behind the ids that stand at `place`, and the cache with them in it."""
        skipped = cache["skipped"][0]
        positions = (place - skipped)[:, None]
        places = jnp.arange(self._length)
        visible = (places[None] <= place) & (places[None] >= skipped[:, None])
        x = self._embedded(last[:, None], positions)
        kept = {name: cache[name] for name in ("key", "value")}

        def one_layer(x: Array, kept: Cache, layer: Parameters, index: Array | int) -> tuple[Array, Cache]:
            query, key, value = self._apply(layer, "project", x, positions)
            kept = {
                name: jax.lax.dynamic_update_slice(kept[name], jnp.swapaxes(new, 1, 2)[None], (index, 0, 0, place, 0))
                for name, new in (("key", key), ("value", value))
            }
            attended = _attend_kept(query, kept["key"][index], kept["value"][index], visible)
            return self._apply(layer, "finish", x, attended, True), kept

        if self._unrolled:
            for index, layer in enumerate(self._layers):
                x, kept = one_layer(x, kept, layer, index)
        else:
            xs = (self._stacked, jnp.arange(self._config.num_decoder_layers))
            (x, kept), _ = jax.lax.scan(lambda carry, xs: (one_layer(*carry, *xs), None), (x, kept), xs)
        return self._logits(x)[:, 0], {**kept, "skipped": cache["skipped"]}

    def _apply(self, layer: Parameters, method: str, *inputs: Any) -> Any:
        return LanguageModelLayer(self._config).apply({"params": layer}, *inputs, method=method)

    def _stack(self, method: str, *inputs: Array) -> Array:
        return Stack(self._config).apply({"params": self._params["decoder"]}, *inputs, method=method)

    def _embed(self, method: str, x: Array) -> Array:
        embed = Embed(self._config.vocab_size, self._config.emb_dim, jnp.dtype(self._config.dtype))
        return embed.apply({"params": self._params["token_embedder"]}, x, method=method)

    def _embedded(self, ids: Int[Array, "B L"], positions: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        return self._stack("placed", self._embed("__call__", ids), positions)

    def _logits(self, x: Float[Array, "R 1 D"]) -> Float[Array, "R 1 V"]:
        x = self._stack("finish", x)
        return self._embed("attend", x) if self._config.logits_via_embedding else x


def _attend_kept(
    query: Float[Array, "R 1 H C"],
    key: Float[Array, "R G L C"],
    value: Float[Array, "R G L C"],
    visible: Bool[Array, "R L"],
) -> Float[Array, "R 1 H C"]:
    """The arithmetic of `attention.dot_product_attention` for one query a row."""
    rows, _, heads, width = query.shape
    grouped = query.reshape(rows, key.shape[1], -1, width)  # [R, G, H / G, C]
    scores = jnp.einsum("rgic,rglc->rgil", grouped, key, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, HIDDEN_SCORE), axis=-1)
    attended = jnp.einsum("rgil,rglc->rgic", weights.astype(value.dtype), value)
    return attended.reshape(rows, 1, heads, width)
