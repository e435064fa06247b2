"""The encoder-decoder: T5 1.0, T5 1.1, mT5, umT5 and ByT5 (Raffel et al. 2020, arXiv:1910.10683).

B batch, L length (Q of queries, K of keys), D model width, V vocabulary. `stack.py` runs the layers, whose parameters
are stacked on axis 0; `kernels/choose.py` chooses the attention kernel.
"""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from limba.config import ModelConfig
from limba.model.attention import Attention
from limba.model.kernels.choose import AttentionKernel, choose
from limba.model.layers import Dropout, Embed, MlpBlock, logits_dense, norm
from limba.model.masks import Mask, ids_of
from limba.model.relative_bias import RelativeBias
from limba.model.stack import run_layers
from limba.model.trees import Batch


def _relative_bias(config: ModelConfig, bidirectional: bool, attend: AttentionKernel) -> Array:
    """Returns the bias of self-attention, in the layout of its kernel."""
    return attend.bias(RelativeBias(config, bidirectional, name="relpos_bias")())


class Layer(nn.Module):
    """Self-attention, in the decoder attention to the encoder's output, MLP; each of norm(x), and added to x.

    `cross`, of the decoder, is the encoder's output with the kernel and the mask of the attention to it.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        attend: AttentionKernel,
        bias: Array | None,
        mask: Mask,
        cross: tuple[Float[Array, "B K D"], AttentionKernel, Mask] | None,
        deterministic: bool,
    ) -> Float[Array, "B L D"]:
        config = self.config
        drop = Dropout(config.dropout_rate)
        name = "attention" if cross is None else "self_attention"  # T5X's, of the encoder and the decoder
        if config.relative_bias_per_layer:
            bias = _relative_bias(config, cross is None, attend)
        y = norm(config, f"pre_{name}_layer_norm")(x)
        y = Attention(config, name=name)(y, y, attend, bias, mask, deterministic)
        x = x + drop(y, deterministic)
        if cross is not None:
            encoded, attend_across, cross_mask = cross
            y = norm(config, "pre_cross_attention_layer_norm")(x)
            cross_attention = Attention(config, name="encoder_decoder_attention")
            y = cross_attention(y, encoded, attend_across, None, cross_mask, deterministic)
            x = x + drop(y, deterministic)
        y = norm(config, "pre_mlp_layer_norm")(x)
        return x + drop(MlpBlock(config, name="mlp")(y, deterministic), deterministic)


class Stack(nn.Module):
    """Embedded tokens to normalized hidden states: the encoder, or with `cross` (its output, a mask) the decoder.

    The decoder returns logits, unless its head is tied or `as_states` asks for hidden states.
    """

    config: ModelConfig
    mesh: Mesh | None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        mask: Mask,
        deterministic: bool,
        cross: tuple[Float[Array, "B K D"], Mask] | None = None,
        as_states: bool = False,
    ) -> Float[Array, "B L DorV"]:
        config = self.config
        batch, length, _ = x.shape
        num_layers = config.num_encoder_layers if cross is None else config.num_decoder_layers
        attend = choose(config, self.mesh, batch, length, length)
        across = None
        if cross is not None:
            encoded, cross_mask = cross
            across = encoded, choose(config, self.mesh, batch, length, encoded.shape[1]), cross_mask
        bias = None
        if not config.relative_bias_per_layer:  # one for all layers
            bias = _relative_bias(config, cross is None, attend)
        x = Dropout(config.dropout_rate)(x, deterministic)
        x = run_layers(self, Layer, num_layers, x, (attend, bias, mask, across), deterministic)
        x = norm(config, "encoder_norm" if cross is None else "decoder_norm")(x)
        x = Dropout(config.dropout_rate)(x, deterministic)
        has_head = cross is not None and not config.logits_via_embedding
        if has_head and not as_states:
            return logits_dense(config, "logits_dense")(x)
        return x


class Transformer(nn.Module):
    """The whole network over a batch of features (seqio's names).

    `encoder_input_tokens` [B, K], `decoder_input_tokens` and `decoder_target_tokens` [B, Q]; packed
    batches also have `encoder_segment_ids` and `decoder_segment_ids` of the same shapes. Where token 0 may be text,
    `encoder_is_read` [B, K] is 0 at the inputs' padding, and `decoder_is_read` [B, Q], else `decoder_target_tokens`, at
    that of the targets.
    """

    config: ModelConfig
    mesh: Mesh | None = None

    def setup(self) -> None:
        self.token_embedder = Embed(self.config)
        self.encoder = Stack(self.config, self.mesh)
        self.decoder = Stack(self.config, self.mesh)

    def encode(
        self, batch: Batch, deterministic: bool, x: Float[Array, "B K D"] | None = None
    ) -> Float[Array, "B K D"]:
        """Returns the encoder's output; `x` is the embedded input if it is already computed."""
        tokens = batch["encoder_input_tokens"]
        ids = ids_of(batch.get("encoder_is_read", tokens), batch.get("encoder_segment_ids"))
        return self.encoder(self.token_embedder(tokens) if x is None else x, Mask(ids, ids), deterministic)

    def __call__(self, batch: Batch, deterministic: bool, as_states: bool = False) -> Float[Array, "B Q DorV"]:
        """Returns float32 logits, or with `as_states` the hidden states that the head turns into logits.

        An encoder alone gives its hidden states.
        """
        if self.config.is_t5_encoder:
            return self.encode(batch, deterministic)
        embedded, x = self.token_embedder.both(batch["encoder_input_tokens"], batch["decoder_input_tokens"])
        return self._decode(batch, x, self.encode(batch, deterministic, embedded), deterministic, as_states)

    def decode(self, batch: Batch, encoded: Float[Array, "B K D"]) -> Float[Array, "B Q D"]:
        """Returns the decoder's hidden states without dropout; `encoded` is what `encode` returns for the inputs."""
        return self._decode(batch, self.token_embedder(batch["decoder_input_tokens"]), encoded, True, True)

    def _decode(
        self,
        batch: Batch,
        x: Float[Array, "B Q D"],
        encoded: Float[Array, "B K D"],
        deterministic: bool,
        as_states: bool,
    ) -> Float[Array, "B Q DorV"]:
        inputs = batch.get("encoder_is_read", batch["encoder_input_tokens"])
        targets = batch.get("decoder_is_read", batch["decoder_target_tokens"])
        ids = ids_of(targets, batch.get("decoder_segment_ids"))
        mask = Mask(ids, ids, causal=True)
        cross_mask = Mask(ids, ids_of(inputs, batch.get("encoder_segment_ids")))
        x = self.decoder(x, mask, deterministic, (encoded, cross_mask), as_states)
        if self.config.logits_via_embedding and not as_states:
            # Tied logits are scaled by D^-1/2, since the embeddings start at variance 1 (T5 1.0).
            return self.token_embedder.attend(x) / jnp.sqrt(jnp.float32(self.config.emb_dim))
        return x
