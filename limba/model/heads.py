"""What an encoder gives in place of the vocabulary's logits: those of classes or tags, a score, or a vector.

EuroBERT's heads (Boizard et al. 2025, arXiv:2503.05500): of a text dense, GELU and the classifier at each token, and
the mean over the tokens, which transformers calls 'late' pooling; of words the classifier alone. ModernBERT's (Warner
et al. 2024, arXiv:2412.13663): the dense layer, the activation and the norm that it also has before the vocabulary's
logits, of the mean or of each word, and the classifier. The encoder of a T5 has the classifier alone (as EncT5, Liu et
al. 2021, arXiv:2110.08426, without its decoder layer). All take the first token's state in place of the mean if told.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from limba.config import ModelConfig
from limba.model.layers import Dense


def mean_over(states: Float[Array, "B L D"], real: Bool[Array, "B L"]) -> Float[Array, "B D"]:
    """Returns the float32 mean of the real tokens' states; zeros for a row without any."""
    weights = real.astype(jnp.float32)[..., None]
    return jnp.sum(states.astype(jnp.float32) * weights, axis=1) / jnp.maximum(jnp.sum(weights, axis=1), 1.0)


class Head(nn.Module):
    """Hidden states to float32 outputs: [B, L, labels] of tags, [B, 1, labels] of classes, [B, 1, 1] of a score.

    `transform` is what a ModernBERT computes between its states and any logits.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        states: Float[Array, "B L D"],
        real: Bool[Array, "B L"],
        transform: Callable[[Float[Array, "B Q D"]], Float[Array, "B Q D"]] = lambda x: x,
    ) -> Float[Array, "B Q N"]:
        config, dtype = self.config, jnp.dtype(self.config.dtype)
        if config.head == "vectors":
            return mean_over(states, real)[:, None]
        num_outputs, is_of_text = max(len(config.labels), 1), config.head != "tags"

        def pooled(states: Float[Array, "B L D"]) -> Float[Array, "B 1 D"]:
            return states[:, :1] if config.pooling == "first" else mean_over(states, real)[:, None]

        classify = Dense(
            num_outputs, ("embed", "labels"), dtype, output_dtype=jnp.dtype("float32"), has_bias=True, name="classifier"
        )
        if config.is_modernbert:
            return classify(transform(pooled(states) if is_of_text else states))
        if config.is_t5_encoder or not is_of_text:
            return classify(pooled(states) if is_of_text else states)
        dense = Dense(config.emb_dim, ("embed", "joined_kv"), dtype, has_bias=True, name="dense")
        # The classifier is linear, so that the mean comes first.
        return classify(pooled(nn.gelu(dense(states), approximate=False)))
