"""The wall around Flax: a network as pure functions of its parameters."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import meta
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from limba.config import ModelConfig
from limba.model.language_model import LanguageModel
from limba.model.language_model_cached import cached_language_model
from limba.model.t5 import Batch, Parameters, Transformer
from limba.model.t5_cached import Cache, Step, cached_decoder


class Network:
    """A network as two pure functions; Flax stays behind this wall."""

    def __init__(self, config: ModelConfig, mesh: Mesh | None = None):
        """`mesh` is where it will run, which decides how attention is computed; None: one device, or any."""
        self.config, self.mesh = config, mesh
        self._module = (LanguageModel if config.is_decoder_only else Transformer)(config, mesh)

    def _boxed(self, key: Array) -> Parameters:
        # Shapes of parameters do not depend on the batch's: the smallest batch will do.
        ones = jnp.ones((1, 1), jnp.int32)
        names = ("decoder_input_tokens", "decoder_target_tokens")
        names += () if self.config.is_decoder_only else ("encoder_input_tokens",)
        return self._module.init(key, dict.fromkeys(names, ones), True)["params"]

    def init(self, key: Array) -> Parameters:
        """Returns float32 parameters, nested by T5X's names with the layers stacked on axis 0."""
        return meta.unbox(self._boxed(key))

    def logical_axes(self) -> Parameters:
        """Returns the same tree with a `PartitionSpec` of logical axis names at each parameter."""
        return nn.get_partition_spec(jax.eval_shape(self._boxed, jax.random.key(0)))

    def apply(self, parameters: Parameters, batch: Batch, dropout_key: Array | None = None) -> Float[Array, "B Q V"]:
        """Returns float32 logits; dropout is off without a key."""
        rngs = {} if dropout_key is None else {"dropout": dropout_key}
        return self._module.apply({"params": parameters}, batch, dropout_key is None, rngs=rngs)

    def apply_to_states(
        self, parameters: Parameters, batch: Batch, dropout_key: Array | None = None
    ) -> Float[Array, "B Q D"]:
        """Returns what the logits are made of, for a loss that makes them itself: see `head`."""
        rngs = {} if dropout_key is None else {"dropout": dropout_key}
        return self._module.apply({"params": parameters}, batch, dropout_key is None, True, rngs=rngs)

    def head(self, parameters: Parameters) -> tuple[Float[Array, "D V"], float]:
        """Returns the matrix, in the activations' dtype, and the factor that turn states into logits without bias."""
        dtype = jnp.dtype(self.config.dtype)
        if self.config.logits_via_embedding:
            scale = 1.0 if self.config.is_decoder_only else self.config.emb_dim**-0.5
            return parameters["token_embedder"]["embedding"].astype(dtype).T, scale
        return parameters["decoder"]["logits_dense"]["kernel"].astype(dtype), 1.0

    def cached_decoder(self, parameters: Parameters, inputs: Int[Array, "B K"], max_tokens: int) -> tuple[Step, Cache]:
        """Encodes, and returns the decoder's step for `limba.decoding` with its empty cache; dropout is off."""
        batch = {"encoder_input_tokens": inputs}
        encoded = self._module.apply({"params": parameters}, batch, True, method=Transformer.encode)
        return cached_decoder(self.config, parameters, encoded, inputs, max_tokens)

    def cached_language_model(
        self, parameters: Parameters, prompt: Int[Array, "B P"], max_tokens: int
    ) -> tuple[Step, Cache]:
        """Reads the prompts, which end together behind -1, and returns a decoder-only network's step and its cache."""
        return cached_language_model(self.config, parameters, prompt, max_tokens)
