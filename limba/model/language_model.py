"""Networks of one stack: flax's lm1b example, GPT-2, Llama, EuroBERT and ModernBERT, by ModelConfig's fields.

Radford et al. 2019 (GPT-2), Touvron et al. 2023 (Llama, arXiv:2302.13971), Boizard et al. 2025 (EuroBERT,
arXiv:2503.05500: a Llama without the causal mask), Warner et al. 2024 (ModernBERT, arXiv:2412.13663; its norm of the
embeddings is the first layer's norm here). Parameter names are T5X's for a decoder. Scores are divided by sqrt(C); a
T5, and so T5X's decoder-only network (`ModelConfig.is_t5_decoder`), has that factor in its initial values.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from limba.config import ModelConfig
from limba.model import layers
from limba.model.attention import query_init
from limba.model.decode_stack import decode_runner, extend_cache, stack_cache, with_kernel_rows
from limba.model.kernels.choose import AttentionKernel, choose
from limba.model.kernels.einsum import cached_attention, dot_product_attention
from limba.model.masks import Mask, causal_mask, ids_of
from limba.model.relative_bias import BiasTable, RelativeBias, bias_by_distance, bias_row
from limba.model.stack import apply_module, run_layers
from limba.model.trees import Batch, Cache, DecodeStep, Parameters

SINUSOID_SCALE = 10_000.0  # Vaswani et al. 2017 (arXiv:1706.03762), section 3.5


def cached_language_model(
    config: ModelConfig,
    params: Parameters,
    prompt: Int[Array, "B P"],
    max_tokens: int,
    is_prefix: bool = False,
    by_rows: bool = False,
) -> tuple[DecodeStep, Cache]:
    """Returns the decode step (cache, last ids, position) -> (logits, cache), and the cache of the prompts.

    Prompts begin with the start id 0; shorter ones are padded with -1 on the left. The cache has all but the last id of
    each, which the first decode step, at `position` 0, reads: "layers" as `stack_cache` returns them, and "skipped"
    [B], the number of positions before a prompt. With `is_prefix` and `prefix_attention = 'full'` the ids of a prompt
    attend to all of it, so that the last one is read with the others, and again by the first decode step.
    """
    is_full = is_prefix and config.prefix_attention == "full"
    network = _Network(config, params, prompt.shape[1] - 1 + max_tokens, by_rows)
    cache = network.read(prompt if is_full else prompt[:, :-1], jnp.sum(prompt < 0, axis=1), is_full)
    first = prompt.shape[1] - 1

    def step(cache: Cache, last: Array, position: Array) -> tuple[Array, Cache]:
        return network.step(cache, last, first + position)

    return step, cache


class _Network:
    """The network's parts with their parameters; the cache has `length` positions."""

    def __init__(self, config: ModelConfig, params: Parameters, length: int, by_rows: bool):
        self._config = config
        self._params = params
        self._length = length
        self._by_rows = by_rows
        self._run_layers = decode_runner(config, config.num_decoder_layers, params["decoder"]["layers"], by_rows)
        self._table = params["decoder"]["relpos_bias"]["rel_embedding"] if config.is_t5_decoder else None
        self._around_layers = {name: part for name, part in params["decoder"].items() if name != "layers"}
        if by_rows:
            self._around_layers = with_kernel_rows(self._around_layers, jnp.dtype(config.dtype))

    def read(self, tokens: Int[Array, "B P"], skipped: Int[Array, " B"], is_full: bool) -> Cache:
        """Returns the cache with the keys and values of the prompts' ids; the positions after them are empty."""
        config = self._config
        rows, length = tokens.shape
        shape = (config.num_decoder_layers, rows, config.kv_heads, self._length, config.head_dim)
        empty = jnp.zeros(shape, jnp.dtype(config.dtype))
        if not length:
            return {"layers": stack_cache(config, empty, empty), "skipped": skipped}
        positions = jnp.maximum(jnp.arange(length, dtype=jnp.int32)[None] - skipped[:, None], 0)
        x = self._embedded(jnp.maximum(tokens, 0), positions)
        seen = jnp.ones((1, 1, 1), bool) if is_full else causal_mask(length)
        mask = seen & jnp.broadcast_to((tokens >= 0)[:, None, :], (rows, length, length))
        bias = None
        if self._table is not None:
            bias = BiasTable(self._table, False, config.relpos_max_distance).pairs(length, length)

        def one_layer(x: Array, layer: Parameters) -> tuple[Array, tuple[Array, Array]]:
            query, key, value = self._apply(layer, "project", x, positions)
            keys = every_head(key, config.num_heads)
            values = every_head(value, config.num_heads)
            attended = dot_product_attention(query, keys, values, bias, mask)
            x = self._apply(layer, "finish", x, attended, True)
            return x, (jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2))

        _, (keys, values) = jax.lax.scan(one_layer, x, self._params["decoder"]["layers"])
        keys = jax.lax.dynamic_update_slice_in_dim(empty, keys, 0, axis=3)
        values = jax.lax.dynamic_update_slice_in_dim(empty, values, 0, axis=3)
        return {"layers": stack_cache(config, keys, values), "skipped": skipped}

    def step(self, cache: Cache, last: Int[Array, " R"], position: Int[Array, ""]) -> tuple[Float[Array, "R V"], Cache]:
        """Returns the logits of the ids after `position` of the cache, and the cache with the last ids there."""
        skipped = cache["skipped"]
        positions = (position - skipped)[:, None]
        indices = jnp.arange(self._length)
        visible = (indices[None] <= position) & (indices[None] >= skipped[:, None])
        x = self._embedded(last[:, None], positions)
        bias = None if self._table is None else self._bias_row(self._table, position)

        def one_layer(x: Array, cache: Cache, layer: Parameters, index: Array | None) -> tuple[Array, Cache]:
            query, key, value = self._apply(layer, "project", x, positions)
            key = jnp.swapaxes(key, 1, 2)
            value = jnp.swapaxes(value, 1, 2)
            cache, keys, values = extend_cache(cache, key, value, position, index)
            attended = _attend(query, keys, values, bias, visible)
            return self._apply(layer, "finish", x, attended, True), cache

        x, caches = self._run_layers(one_layer, x, cache["layers"])
        return self._logits(x)[:, 0], {"layers": caches, "skipped": skipped}

    def _bias_row(self, table: Float[Array, "H W"], query: Int[Array, ""]) -> Float[Array, "H 1 L"]:
        by_distance = bias_by_distance(self._config, table, self._length)
        return bias_row(by_distance, query, self._length)

    def _apply(self, layer: Parameters, method: str, *inputs: PyTree) -> PyTree:
        return apply_module(LanguageModelLayer(self._config), layer, *inputs, method=method)

    def _stack(self, method: str, *inputs: Array) -> Array:
        return apply_module(Stack(self._config), self._around_layers, *inputs, method=method)

    def _embed(self, method: str, x: Array) -> Array:
        return apply_module(layers.Embed(self._config), self._params["token_embedder"], x, method=method)

    def _embedded(self, ids: Int[Array, "B L"], positions: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        return self._stack("add_positions", self._embed("__call__", ids), positions)

    def _logits(self, x: Float[Array, "R 1 D"]) -> Float[Array, "R 1 V"]:
        x = self._stack("finish", x)
        if self._config.logits_via_embedding:
            attend = "attend_by_rows" if self._by_rows else "attend"
            return self._embed(attend, x) * self._config.tied_logits_scale
        return x


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


def positions_in_segments(segments: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Returns each token's position in its own packed example, from 0.

    >>> positions_in_segments(jnp.array([[1, 1, 1, 2, 2, 0]])).tolist()
    [[0, 1, 2, 0, 1, 0]]
    """
    indices = jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32)[None], segments.shape)
    starts = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))
    return indices - jax.lax.cummax(jnp.where(starts, indices, 0), axis=1)


def rotary_frequencies(config: ModelConfig, layer: Array | int) -> Float[Array, " halfC"] | np.ndarray:
    """Returns the angles of one position in a layer (Su et al. 2021, arXiv:2104.09864)."""
    everywhere = _frequencies(config.rotary_base, config.head_dim)
    if config.local_attention is None:
        return everywhere
    *_, nearby_base = config.local_attention  # ModernBERT: layers with a window have a base of their own
    return jnp.where(sees_all(config, layer), everywhere, _frequencies(nearby_base, config.head_dim))


def _frequencies(base: float, head_dim: int) -> np.ndarray:
    half = head_dim // 2
    return (base ** (-np.arange(half) / half)).astype(np.float32)


def sees_all(config: ModelConfig, layer: Array | int) -> Array | bool:
    """Returns whether a layer, by its number from 0, sees tokens beyond the window of `local_attention`."""
    return config.local_attention is None or layer % config.local_attention[1] == 0


def rotated(
    x: Float[Array, "B L H C"], positions: Int[Array, "B L"], frequencies: Array | np.ndarray
) -> Float[Array, "B L H C"]:
    """Returns x rotated by its position; pairs are (i, i + C/2), as Llama's."""
    angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies[None, None, None]
    cosine = jnp.cos(angles)
    sine = jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    result = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return result.astype(x.dtype)


def sinusoids(positions: Int[Array, "B L"], width: int) -> Float[Array, "B L D"]:
    """Returns position embeddings: sines in the first half, cosines in the second, as in flax's lm1b example."""
    half = width // 2
    frequencies = (SINUSOID_SCALE ** (-np.arange(half) / max(half - 1, 1))).astype(np.float32)
    angles = positions.astype(jnp.float32)[:, :, None] * frequencies[None, None]
    table = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return jnp.pad(table, ((0, 0), (0, 0), (0, width - 2 * half)))


class SelfAttention(nn.Module):
    """The projections of self-attention. The layer attends between them, with or without a KV cache."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        dtype = jnp.dtype(config.dtype)
        has_bias = "attention" in config.biases

        def into_heads(heads: int, init: layers.Initializer = layers.attention_init) -> layers.Dense:
            width = heads * config.head_dim
            return layers.Dense(width, ("embed", "joined_kv"), dtype, init, has_bias=has_bias)

        init = query_init(config.head_dim) if config.is_t5_decoder else layers.attention_init
        self.query = into_heads(config.num_heads, init)
        self.key = into_heads(config.kv_heads)
        self.value = into_heads(config.kv_heads)
        self.out = layers.Dense(config.emb_dim, ("joined_kv", "embed"), dtype, layers.attention_init, has_bias=has_bias)

    def project(
        self, x: Float[Array, "B L D"], positions: Int[Array, "B L"], layer: Array | int = 0
    ) -> tuple[Float[Array, "B L H C"], Float[Array, "B L G C"], Float[Array, "B L G C"]]:
        """Returns queries, divided by sqrt(C), and the keys and values of the G key-value heads.

        Queries of T5X's decoder are not divided: their initial values are.
        """
        config = self.config
        query, key, value = (
            flat.reshape(*flat.shape[:-1], -1, config.head_dim) for flat in (self.query(x), self.key(x), self.value(x))
        )
        if config.positions == "rotary":
            frequencies = rotary_frequencies(config, layer)
            query = rotated(query, positions, frequencies)
            key = rotated(key, positions, frequencies)
        if not config.is_t5_decoder:
            query = query * config.head_dim**-0.5
        return query, key, value

    def join(self, attended: Float[Array, "B L H C"]) -> Float[Array, "B L D"]:
        """Returns the heads' values, projected back to the model width."""
        return self.out(attended.reshape(*attended.shape[:-2], -1))


def every_head(grouped: Float[Array, "B K G C"], num_heads: int) -> Float[Array, "B K H C"]:
    """Returns keys or values, repeated for the query heads that share them (Ainslie et al. 2023, arXiv:2305.13245)."""
    times = num_heads // grouped.shape[2]
    return grouped if times == 1 else jnp.repeat(grouped, times, axis=2)


class LanguageModelLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). In parts, between which a decode step uses its KV cache."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.pre_self_attention_layer_norm = layers.norm(config)
        self.self_attention = SelfAttention(config)
        self.pre_mlp_layer_norm = layers.norm(config)
        self.mlp = layers.MlpBlock(config)
        self.drop = layers.Dropout(config.dropout_rate)

    def project(
        self, x: Float[Array, "B L D"], positions: Int[Array, "B L"]
    ) -> tuple[Float[Array, "B L H C"], Float[Array, "B L G C"], Float[Array, "B L G C"]]:
        """Returns queries, keys and values of norm(x)."""
        return self.self_attention.project(self.pre_self_attention_layer_norm(x), positions)

    def finish(
        self, x: Float[Array, "B L D"], attended: Float[Array, "B L H C"], deterministic: bool
    ) -> Float[Array, "B L D"]:
        """Returns the layer's output, given what its attention returned."""
        x = x + self.drop(self.self_attention.join(attended), deterministic)
        return x + self.drop(self.mlp(self.pre_mlp_layer_norm(x), deterministic), deterministic)

    def __call__(
        self,
        x: Float[Array, "B L D"],
        attend: AttentionKernel,
        bias: Array | None,
        positions: Int[Array, "B L"],
        mask: Mask,
        layer: Array | int,
        deterministic: bool,
    ) -> Float[Array, "B L D"]:
        config = self.config
        normed = self.pre_self_attention_layer_norm(x)
        if config.local_attention is not None:
            x = jnp.where(layer == 0, normed, x)  # the norm of the embeddings
        query, key, value = self.self_attention.project(normed, positions, layer)
        if config.dropout_rate > 0 and not deterministic:
            # As in T5, dropout of weights is shared over the queries of a head, which equals dropout of values.
            keep_rate = 1 - config.dropout_rate
            shape = (*value.shape[:-1], 1)
            kept = jax.random.bernoulli(self.make_rng("dropout"), keep_rate, shape)
            value = jnp.where(kept, value / keep_rate, 0)
        key = every_head(key, config.num_heads)
        value = every_head(value, config.num_heads)
        if config.local_attention is not None:
            mask = dataclasses.replace(mask, reach=config.local_attention[0] // 2, everywhere=sees_all(config, layer))
        attended = attend(attend.arrange((query, key, value)), bias, mask)
        return self.finish(x, attend.restore(attended), deterministic)


class Stack(nn.Module):
    """Embedded tokens to normalized hidden states, and to logits where the head is not tied."""

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        config = self.config
        if config.positions == "learned":
            init = nn.initializers.normal(0.02)
            shape = (config.max_length, config.emb_dim)
            self.position_embedding = layers.parameter(self, "position_embedding", init, ("length", "embed"), shape)
        if config.is_t5_decoder:
            self.relpos_bias = RelativeBias(config, bidirectional=False)
        self.decoder_norm = layers.norm(config)
        self.drop_output = layers.Dropout(config.dropout_rate)
        if not config.has_logits:
            return
        if config.is_modernbert:
            dtype = jnp.dtype(config.dtype)
            self.head_dense = layers.Dense(config.emb_dim, ("embed", "mlp"), dtype, has_bias="head" in config.biases)
            self.head_norm = layers.norm(config)
        if not config.logits_via_embedding:
            self.logits_dense = layers.logits_dense(config)
        elif "logits" in config.biases:
            self.logits_dense = layers.LogitsBias()

    def add_positions(self, x: Float[Array, "B L D"], positions: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        """Returns x plus learned or sinusoidal position embeddings; rotary and relative ones are in the attention."""
        if self.config.positions == "learned":
            return x + jnp.take(self.position_embedding, positions, axis=0, mode="clip").astype(x.dtype)
        if self.config.positions == "sinusoidal":
            return x + sinusoids(positions, x.shape[-1]).astype(x.dtype)
        return x

    def finish(
        self, x: Float[Array, "B L D"], as_states: bool = False, deterministic: bool = True
    ) -> Float[Array, "B L DorV"]:
        """Returns logits, or normalized hidden states with `as_states`, or what a tied head turns into logits."""
        x = self.decoder_norm(x)
        if self.config.is_t5_decoder:
            x = self.drop_output(x, deterministic)
        if as_states:
            return x
        if self.config.is_modernbert:
            activate = layers.ACTIVATION_FUNCTIONS[self.config.mlp_activations[0]]
            x = self.head_norm(activate(self.head_dense(x)))
        if self.config.logits_via_embedding:
            return x
        return self.logits_dense(x)

    def add_bias(self, logits: Float[Array, "B L V"]) -> Float[Array, "B L V"]:
        """Returns the logits of a tied head with its bias, if it has one."""
        if "logits" in self.config.biases:
            return self.logits_dense(logits)
        return logits

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        positions: Int[Array, "B L"],
        mask: Mask,
        deterministic: bool,
        as_states: bool = False,
        predicted: Int[Array, "B P"] | None = None,
    ) -> Float[Array, "B LorP DorV"]:
        config = self.config
        batch, length, _ = x.shape
        attend = choose(config, self.mesh, batch, length, length)
        x = layers.Dropout(config.dropout_rate)(self.add_positions(x, positions), deterministic)
        bias = attend.bias(self.relpos_bias()) if config.is_t5_decoder else None
        inputs = (attend, bias, positions, mask)
        x = run_layers(self, LanguageModelLayer, config.num_decoder_layers, x, inputs, deterministic, numbered=True)
        if predicted is not None:
            x = jnp.take_along_axis(x, predicted[..., None], axis=1)
        return self.finish(x, as_states, deterministic)


class LanguageModel(nn.Module):
    """The whole network over a batch of features (seqio's names), all int32 [B, L].

    `decoder_input_tokens` and `decoder_target_tokens`; packed batches also have `decoder_segment_ids`, each
    segment beginning at position 0, and a prefix LM's `decoder_causal_attention`, 1 where the prefix is read. An
    encoder's inputs are the targets with some of them masked, at the same positions; where its batch has
    `decoder_causal_attention`, that says which mask each row has: all 1 in a bidirectional one, 0 in a causal one,
    which it reads shifted by one place, after 0 or as `decoder_previous_tokens`. A hybrid reads all rows so. With
    `decoder_predicted_positions` [B, P] only these positions pass through the head. Where token 0 may be text,
    `decoder_is_read` is 0 at padding.
    """

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        self.token_embedder = layers.Embed(self.config)
        self.decoder = Stack(self.config, self.mesh)

    def __call__(self, batch: Batch, deterministic: bool, as_states: bool = False) -> Float[Array, "B LorP DorV"]:
        """Returns float32 logits, or the hidden states that the head turns into logits.

        States are returned with `as_states`, and by a network without logits.
        """
        config = self.config
        as_states = as_states or not config.has_logits
        targets = batch.get("decoder_is_read", batch["decoder_target_tokens"])
        segments = batch.get("decoder_segment_ids", jnp.ones_like(targets))
        ids = ids_of(targets, segments)
        positions = positions_in_segments(segments)

        # Which tokens see those after them: all of an encoder, a prefix, or the ones that the batch marks.
        says_own_mask = "decoder_causal_attention" in batch
        both_ways = None
        if says_own_mask and (config.is_encoder or config.prefix_attention == "full"):
            both_ways = batch["decoder_causal_attention"] > 0
        mask = Mask(ids, ids, says_own_mask or not config.is_encoder, both_ways)

        inputs = batch["decoder_input_tokens"]
        if config.is_encoder and (says_own_mask or config.predicts_next):
            # Where the next token is predicted, the token before is read.
            before = batch.get("decoder_previous_tokens")
            if before is None:
                before = jnp.where(positions > 0, jnp.roll(inputs, 1, axis=1), 0)
            reads_own = not config.predicts_next and batch["decoder_causal_attention"] > 0
            inputs = jnp.where(reads_own, inputs, before)

        predicted = batch.get("decoder_predicted_positions")
        x = self.decoder(self.token_embedder(inputs), positions, mask, deterministic, as_states, predicted)
        if as_states or not config.logits_via_embedding:
            return x
        return self.decoder.add_bias(self.token_embedder.attend(x) * config.tied_logits_scale)
