"""The encoder-decoder: T5 1.0, T5 1.1, mT5, umT5 and ByT5 (Raffel et al. 2020, arXiv:1910.10683).

One tree for every way to run it: a stack's parameters lie stacked on axis 0 under `layers`, and the
stack runs as one `lax.scan` (compiles once for all layers) or as a loop over its slices (faster
steps, longer compile). `limba/formats/names.py` unstacks to T5X's `layers_0`, `layers_1`, ….
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import meta
from jax.sharding import Mesh
from jaxtyping import Array, Float

from limba.config import ModelConfig
from limba.model.attention import Attention, implementation
from limba.model.kernels.sharded import PallasAttention
from limba.model.layers import ATTENDED, DENSE, Dense, Dropout, Embed, MlpBlock, RMSNorm
from limba.model.masks import Mask, ids_of
from limba.model.relative_bias import RelativeBias
from limba.sharding.mesh import constrain_batch_sharding

Parameters = Mapping[str, Any]
Batch = Mapping[str, Array]


def _norm(config: ModelConfig, name: str) -> RMSNorm:
    return RMSNorm(config.layer_norm_epsilon, jnp.dtype(config.dtype), name=name)


def _attention(config: ModelConfig, mesh: Mesh | None, name: str) -> Attention:
    return Attention(
        config.num_heads,
        config.head_dim,
        config.dropout_rate,
        jnp.dtype(config.dtype),
        config.attention,
        mesh,
        name=name,
    )


def _relative_bias(
    config: ModelConfig, mesh: Mesh | None, bidirectional: bool, x: Float[Array, "B L D"]
) -> Float[Array, "*G H L L"] | Float[Array, "G H P"]:
    """Returns the bias of self-attention over `x`, as the attention that will be taken wants it."""
    bias = RelativeBias(
        config.num_heads,
        config.num_relpos_buckets,
        config.relpos_max_distance,
        bidirectional,
        name="relpos_bias",
    )
    batch, length, _ = x.shape
    name = implementation(config.attention, mesh, batch, length, length, config.num_heads, config.head_dim)
    return bias(length, length, PallasAttention(mesh, config.num_heads) if name == "pallas" else None)


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    config: ModelConfig
    mesh: Mesh | None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        bias: Float[Array, "*G H L L"] | Float[Array, "G H P"] | None,
        mask: Mask,
        deterministic: bool,
    ) -> Float[Array, "B L D"]:
        config = self.config
        drop = Dropout(config.dropout_rate)
        if config.relative_bias_per_layer:
            bias = _relative_bias(config, self.mesh, True, x)
        y = _norm(config, "pre_attention_layer_norm")(x)
        x = x + drop(_attention(config, self.mesh, "attention")(y, y, bias, mask, deterministic), deterministic)
        y = _norm(config, "pre_mlp_layer_norm")(x)
        return x + drop(_mlp(config)(y, deterministic), deterministic)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, MLP; each on the normed stream."""

    config: ModelConfig
    mesh: Mesh | None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B Q D"],
        encoded: Float[Array, "B K D"],
        bias: Float[Array, "*G H Q Q"] | Float[Array, "G H P"] | None,
        mask: Mask,
        cross_mask: Mask,
        deterministic: bool,
    ) -> Float[Array, "B Q D"]:
        config = self.config
        drop = Dropout(config.dropout_rate)
        if config.relative_bias_per_layer:
            bias = _relative_bias(config, self.mesh, False, x)
        y = _norm(config, "pre_self_attention_layer_norm")(x)
        x = x + drop(_attention(config, self.mesh, "self_attention")(y, y, bias, mask, deterministic), deterministic)
        y = _norm(config, "pre_cross_attention_layer_norm")(x)
        cross = _attention(config, self.mesh, "encoder_decoder_attention")(y, encoded, None, cross_mask, deterministic)
        x = x + drop(cross, deterministic)
        y = _norm(config, "pre_mlp_layer_norm")(x)
        return x + drop(_mlp(config)(y, deterministic), deterministic)


def _mlp(config: ModelConfig) -> MlpBlock:
    return MlpBlock(config.mlp_dim, config.mlp_activations, config.dropout_rate, jnp.dtype(config.dtype), name="mlp")


def run_layers(
    owner: nn.Module,
    layer_type: type[nn.Module],
    num_layers: int,
    x: Float[Array, "B L D"],
    inputs: tuple[Array | Mask | None, ...],
    deterministic: bool,
) -> Float[Array, "B L D"]:
    """Runs a stack of equal layers over parameters stacked on axis 0 in `owner`'s `layers`.

    Scanned and unrolled give the same numbers: layer i draws its dropout from the stack's key
    folded with i.
    """
    config = owner.config
    layer = layer_type(config, owner.mesh, parent=None)

    def init(key: Array) -> Parameters:
        def init_one(layer_key: Array) -> Parameters:
            return layer.init(layer_key, x, *inputs, True)["params"]

        stacked = jax.vmap(init_one)(jax.random.split(key, num_layers))
        return meta.add_axis(stacked, 0, {meta.PARTITION_NAME: "layers"})

    stacked = owner.param("layers", init)
    drops = config.dropout_rate > 0 and not deterministic
    dropout_key = owner.make_rng("dropout") if drops else None

    def step(x: Array, parameters: Parameters, index: Array | int) -> Array:
        rngs = {"dropout": jax.random.fold_in(dropout_key, index)} if drops else {}
        x = constrain_batch_sharding(x, owner.mesh)
        return layer.apply({"params": parameters}, x, *inputs, deterministic, rngs=rngs)

    if config.scan_layers:
        stacked = jax.tree.map_with_path(functools.partial(_in_dtype, jnp.dtype(config.dtype)), stacked)
        step = _rematerialized(step, config.remat, prevent_cse=False)
        indices = jnp.arange(num_layers)
        x, _ = jax.lax.scan(lambda x, xs: (step(x, *xs), None), x, (stacked, indices))
        return x
    step = _rematerialized(step, config.remat, prevent_cse=True)
    for i, parameters in enumerate(_unstack(stacked, num_layers)):
        x = step(x, parameters, i)
    return x


def _in_dtype(dtype: jnp.dtype, path: tuple, array: Array) -> Array:
    """Returns a matrix in the activations' dtype, which it is used in: its stack's gradient is then written in it."""
    return array.astype(dtype) if path[-1].key == "kernel" else array


def _unstack(stacked: Parameters, num_layers: int) -> list[Parameters]:
    """Returns the layers' trees. `split` and not indexing: its gradient is one concatenation."""
    leaves, structure = jax.tree.flatten(stacked)
    split = [jax.lax.split(leaf, (1,) * num_layers, axis=0) for leaf in leaves]
    return [structure.unflatten([parts[i][0] for parts in split]) for i in range(num_layers)]


def _rematerialized(step: Callable, remat: str, prevent_cse: bool) -> Callable:
    """Wraps a layer so that its backward pass recomputes what `remat` does not save."""
    if remat == "none":
        return step
    policy = jax.checkpoint_policies.save_only_these_names(DENSE, ATTENDED) if remat == "minimal" else None
    return jax.checkpoint(step, policy=policy, prevent_cse=prevent_cse)


class Encoder(nn.Module):
    """Embedded tokens to the memory that the decoder reads."""

    config: ModelConfig
    mesh: Mesh | None

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], mask: Mask, deterministic: bool) -> Float[Array, "B L D"]:
        config = self.config
        bias = None if config.relative_bias_per_layer else _relative_bias(config, self.mesh, True, x)
        x = Dropout(config.dropout_rate)(x, deterministic)
        x = run_layers(self, EncoderLayer, config.num_encoder_layers, x, (bias, mask), deterministic)
        return Dropout(config.dropout_rate)(_norm(config, "encoder_norm")(x), deterministic)


class Decoder(nn.Module):
    """Embedded, shifted targets and the encoder's output to logits, or, with a tied head, hidden states."""

    config: ModelConfig
    mesh: Mesh | None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B Q D"],
        encoded: Float[Array, "B K D"],
        mask: Mask,
        cross_mask: Mask,
        deterministic: bool,
        as_states: bool = False,
    ) -> Float[Array, "B Q DorV"]:
        config = self.config
        bias = None if config.relative_bias_per_layer else _relative_bias(config, self.mesh, False, x)
        x = Dropout(config.dropout_rate)(x, deterministic)
        inputs = (encoded, bias, mask, cross_mask)
        x = run_layers(self, DecoderLayer, config.num_decoder_layers, x, inputs, deterministic)
        x = Dropout(config.dropout_rate)(_norm(config, "decoder_norm")(x), deterministic)
        if config.logits_via_embedding or as_states:
            return x
        head = Dense(
            config.vocab_size,
            ("embed", "vocab"),
            jnp.dtype(config.dtype),
            output_dtype=jnp.dtype("float32"),
            name="logits_dense",
        )
        return head(x)


class Transformer(nn.Module):
    """The whole network over a batch of features (seqio's names).

    `encoder_input_tokens` [B, K], `decoder_input_tokens` and `decoder_target_tokens` [B, Q]; packed
    batches also carry `encoder_segment_ids` and `decoder_segment_ids` of the same shapes.
    """

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        config = self.config
        self.token_embedder = Embed(config.vocab_size, config.emb_dim, jnp.dtype(config.dtype))
        self.encoder = Encoder(config, self.mesh)
        self.decoder = Decoder(config, self.mesh)

    def encode(
        self, batch: Batch, deterministic: bool, x: Float[Array, "B K D"] | None = None
    ) -> Float[Array, "B K D"]:
        """Returns the encoder's output; `x` are the inputs' embeddings where they are at hand."""
        tokens = batch["encoder_input_tokens"]
        ids = ids_of(tokens, batch.get("encoder_segment_ids"))
        return self.encoder(self.token_embedder(tokens) if x is None else x, Mask(ids, ids), deterministic)

    def __call__(self, batch: Batch, deterministic: bool, as_states: bool = False) -> Float[Array, "B Q DorV"]:
        inputs, targets = batch["encoder_input_tokens"], batch["decoder_target_tokens"]
        embedded, x = self.token_embedder.both(inputs, batch["decoder_input_tokens"])
        encoded = self.encode(batch, deterministic, embedded)
        ids = ids_of(targets, batch.get("decoder_segment_ids"))
        mask = Mask(ids, ids, causal=True)
        cross_mask = Mask(ids, ids_of(inputs, batch.get("encoder_segment_ids")))
        x = self.decoder(x, encoded, mask, cross_mask, deterministic, as_states)
        if self.config.logits_via_embedding and not as_states:
            # Tied logits are scaled by D^-1/2, since the embeddings start at variance 1 (T5 1.0).
            return self.token_embedder.attend(x) / jnp.sqrt(jnp.float32(self.config.emb_dim))
        return x
