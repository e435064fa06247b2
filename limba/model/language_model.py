"""Decoder-only language models: the flax lm1b layout, GPT-2's and Llama's differ only in ModelConfig's fields.

Radford et al. 2019 (GPT-2), Touvron et al. 2023 (Llama, arXiv:2302.13971). Parameter names are T5X's for a
decoder; scores are divided by the root of the head's width, where a T5 has that in its initial values.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from limba.config import ModelConfig
from limba.model.attention import attend
from limba.model.layers import Dense, Dropout, Embed, LayerNorm, MlpBlock, RMSNorm, attention_kernel_init
from limba.model.masks import Mask, causal_mask, ids_of, prefix_mask
from limba.model.t5 import Batch, run_layers

SINUSOID_SCALE = 10_000.0  # Vaswani et al. 2017 (arXiv:1706.03762), section 3.5


def positions_in_segments(segments: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Returns each token's place in its own packed example, counted from 0; one segment is counted through.

    >>> positions_in_segments(jnp.array([[1, 1, 1, 2, 2, 0]])).tolist()
    [[0, 1, 2, 0, 1, 0]]
    """
    places = jnp.broadcast_to(jnp.arange(segments.shape[1], dtype=jnp.int32)[None], segments.shape)
    starts = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))
    return places - jax.lax.cummax(jnp.where(starts, places, 0), axis=1)


def rotated(x: Float[Array, "B L H C"], positions: Int[Array, "B L"], base: float) -> Float[Array, "B L H C"]:
    """Returns x turned by its position, halves paired as Llama pairs them (Su et al. 2021, arXiv:2104.09864)."""
    half = x.shape[-1] // 2
    frequencies = (base ** (-np.arange(half) / half)).astype(np.float32)
    angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies[None, None, None]
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


def sinusoids(positions: Int[Array, "B L"], width: int) -> Float[Array, "B L D"]:
    """Returns sines in the first half and cosines in the second, as flax's lm1b example lays them out."""
    half = width // 2
    frequencies = (SINUSOID_SCALE ** (-np.arange(half) / max(half - 1, 1))).astype(np.float32)
    angles = positions.astype(jnp.float32)[:, :, None] * frequencies[None, None]
    table = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return jnp.pad(table, ((0, 0), (0, 0), (0, width - 2 * half)))


def norm(config: ModelConfig) -> RMSNorm | LayerNorm:
    kind = RMSNorm if config.norm == "rms" else LayerNorm
    return kind(config.layer_norm_epsilon, jnp.dtype(config.dtype))


class SelfAttention(nn.Module):
    """The projections; what attends between them is the layer's, with or without a cache."""

    config: ModelConfig

    def setup(self) -> None:
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        has_bias = "attention" in config.biases

        def into_heads(heads: int) -> Dense:
            width = heads * config.head_dim
            return Dense(width, ("embed", "joined_kv"), dtype, attention_kernel_init, has_bias=has_bias)

        self.query, self.key, self.value = map(into_heads, (config.num_heads, config.kv_heads, config.kv_heads))
        self.out = Dense(config.emb_dim, ("joined_kv", "embed"), dtype, attention_kernel_init, has_bias=has_bias)

    def project(
        self, x: Float[Array, "B L D"], positions: Int[Array, "B L"]
    ) -> tuple[Float[Array, "B L H C"], Float[Array, "B L G C"], Float[Array, "B L G C"]]:
        """Returns queries, divided by the root of C, and the keys and values of the G heads that have them."""
        config = self.config
        query, key, value = (
            flat.reshape(*flat.shape[:-1], -1, config.head_dim) for flat in (self.query(x), self.key(x), self.value(x))
        )
        if config.positions == "rotary":
            query = rotated(query, positions, config.rotary_base)
            key = rotated(key, positions, config.rotary_base)
        return query * config.head_dim**-0.5, key, value

    def join(self, attended: Float[Array, "B L H C"]) -> Float[Array, "B L D"]:
        return self.out(attended.reshape(*attended.shape[:-2], -1))


def every_head(grouped: Float[Array, "B K G C"], num_heads: int) -> Float[Array, "B K H C"]:
    """Repeats keys or values for the queries that share them (Ainslie et al. 2023, arXiv:2305.13245)."""
    times = num_heads // grouped.shape[2]
    return grouped if times == 1 else jnp.repeat(grouped, times, axis=2)


class LanguageModelLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); in pieces, so that decoding puts its cache between them."""

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        config = self.config
        self.pre_self_attention_layer_norm = norm(config)
        self.self_attention = SelfAttention(config)
        self.pre_mlp_layer_norm = norm(config)
        self.mlp = MlpBlock(
            config.mlp_dim,
            config.mlp_activations,
            config.dropout_rate,
            jnp.dtype(config.dtype),
            has_biases="mlp" in config.biases,
        )
        self.drop = Dropout(config.dropout_rate)

    def project(
        self, x: Float[Array, "B L D"], positions: Int[Array, "B L"]
    ) -> tuple[Float[Array, "B L H C"], Float[Array, "B L G C"], Float[Array, "B L G C"]]:
        return self.self_attention.project(self.pre_self_attention_layer_norm(x), positions)

    def finish(
        self, x: Float[Array, "B L D"], attended: Float[Array, "B L H C"], deterministic: bool
    ) -> Float[Array, "B L D"]:
        x = x + self.drop(self.self_attention.join(attended), deterministic)
        return x + self.drop(self.mlp(self.pre_mlp_layer_norm(x), deterministic), deterministic)

    def __call__(
        self,
        x: Float[Array, "B L D"],
        positions: Int[Array, "B L"],
        mask: Bool[Array, "B L L"],
        deterministic: bool,
    ) -> Float[Array, "B L D"]:
        config = self.config
        query, key, value = self.project(x, positions)
        if config.dropout_rate > 0 and not deterministic:
            # As in a T5: an attention weight is dropped for all queries of a head, which drops the value it picks.
            kept = jax.random.bernoulli(self.make_rng("dropout"), 1 - config.dropout_rate, (*value.shape[:-1], 1))
            value = jnp.where(kept, value / (1 - config.dropout_rate), 0)
        key, value = (every_head(each, config.num_heads) for each in (key, value))
        return self.finish(x, attend(config.attention, self.mesh, query, key, value, mask), deterministic)


class Stack(nn.Module):
    """Embedded tokens to normed hidden states, and these to logits where the head is not tied."""

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        config = self.config
        if config.positions == "learned":
            init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("length", "embed"))
            self.position_embedding = self.param(
                "position_embedding", init, (config.max_length, config.emb_dim), jnp.float32
            )
        self.decoder_norm = norm(config)
        if not config.logits_via_embedding:
            self.logits_dense = Dense(
                config.vocab_size,
                ("embed", "vocab"),
                jnp.dtype(config.dtype),
                output_dtype=jnp.dtype("float32"),
                has_bias="logits" in config.biases,
            )

    def placed(self, x: Float[Array, "B L D"], positions: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        """Adds what tells the positions, where that is not the attention's affair."""
        if self.config.positions == "learned":
            return x + jnp.take(self.position_embedding, positions, axis=0, mode="clip").astype(x.dtype)
        if self.config.positions == "sinusoidal":
            return x + sinusoids(positions, x.shape[-1]).astype(x.dtype)
        return x

    def finish(self, x: Float[Array, "B L D"], as_states: bool = False) -> Float[Array, "B L DorV"]:
        x = self.decoder_norm(x)
        return x if self.config.logits_via_embedding or as_states else self.logits_dense(x)

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        positions: Int[Array, "B L"],
        mask: Bool[Array, "B L L"],
        deterministic: bool,
        as_states: bool = False,
    ) -> Float[Array, "B L DorV"]:
        config = self.config
        x = Dropout(config.dropout_rate)(self.placed(x, positions), deterministic)
        x = run_layers(self, LanguageModelLayer, config.num_decoder_layers, x, (positions, mask), deterministic)
        return self.finish(x, as_states)


class LanguageModel(nn.Module):
    """The whole network over a batch of features (seqio's names), all int32 [B, L].

    `decoder_input_tokens` and `decoder_target_tokens`; packed batches also carry `decoder_segment_ids`, each
    segment beginning at position 0, and prefix LM `decoder_causal_attention`, 1 where the prefix is read.
    A tied head is not scaled; its embedding starts at D^-1/2 instead.
    """

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        config = self.config
        deviation = config.emb_dim**-0.5 if config.logits_via_embedding else 1.0
        self.token_embedder = Embed(config.vocab_size, config.emb_dim, jnp.dtype(config.dtype), deviation)
        self.decoder = Stack(config, self.mesh)

    def __call__(self, batch: Batch, deterministic: bool, as_states: bool = False) -> Float[Array, "B L DorV"]:
        targets = batch["decoder_target_tokens"]
        segments = batch.get("decoder_segment_ids", jnp.ones_like(targets))
        behind = causal_mask(targets.shape[1])
        if "decoder_causal_attention" in batch:
            behind = behind | prefix_mask(batch["decoder_causal_attention"] > 0)
        ids = ids_of(targets, segments)
        mask = Mask(ids, ids).visible() & behind
        x = self.token_embedder(batch["decoder_input_tokens"])
        x = self.decoder(x, positions_in_segments(segments), mask, deterministic, as_states)
        tied = self.config.logits_via_embedding and not as_states
        return self.token_embedder.attend(x) if tied else x
