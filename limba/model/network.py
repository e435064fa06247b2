"""The wall around Flax: a network as pure functions of its parameters."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import meta
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from limba.config import ModelConfig
from limba.model.language_model import LanguageModel, cached_language_model
from limba.model.stack import apply_module
from limba.model.t5 import Transformer
from limba.model.t5_cached import cached_decoder
from limba.model.trees import Batch, Cache, DecodeStep, Parameters


class Network:
    """A network as pure functions: `init(key) -> parameters`, `apply(parameters, batch) -> logits`.

    >>> from limba.config import ModelConfig
    >>> network = Network(ModelConfig(256, 64, 2, 32, 128, num_encoder_layers=2, num_decoder_layers=2))
    >>> parameters = jax.eval_shape(network.init, jax.random.key(0))
    >>> parameters["encoder"]["layers"]["attention"]["query"]["kernel"].shape
    (2, 64, 64)
    """

    def __init__(self, config: ModelConfig, mesh: Mesh | None = None):
        """`mesh` is where it will run, on which the attention kernel depends. None: this machine's devices."""
        self.config = config
        self.mesh = mesh
        module = LanguageModel if config.is_decoder_only else Transformer
        self._module = module(config, mesh)
        # jax keeps what it has traced, and a start asks several times. Inlined: programs are as without it.
        self._boxed = jax.jit(self._new_boxed, inline=True)

    def _new_boxed(self, key: Array) -> Parameters:
        # The parameters' shapes do not depend on the batch, so the smallest batch is used.
        ones = jnp.ones((1, 1), jnp.int32)
        names = ["decoder_input_tokens", "decoder_target_tokens"]
        if not self.config.is_decoder_only:
            names.append("encoder_input_tokens")
        return self._module.init(key, dict.fromkeys(names, ones), True)["params"]

    def init(self, key: Array) -> Parameters:
        """Returns float32 parameters, nested by T5X's names with the layers stacked on axis 0."""
        return meta.unbox(self._boxed(key))

    def logical_axes(self) -> Parameters:
        """Returns the same tree with a `PartitionSpec` of logical axis names for each parameter."""
        return nn.get_partition_spec(jax.eval_shape(self._boxed, jax.random.key(0)))

    def apply(
        self, parameters: Parameters, batch: Batch, dropout_key: Array | None = None, as_states: bool = False
    ) -> Float[Array, "B Q DorV"]:
        """Returns float32 logits, or with `as_states` the hidden states that `head` turns into logits.

        A network without logits gives its hidden states in any case. Without a key there is no dropout.
        """
        return apply_module(self._module, parameters, batch, dropout_key is None, as_states, dropout_key=dropout_key)

    def head(self, parameters: Parameters) -> tuple[Float[Array, "D V"], float]:
        """Returns a matrix, in the activations' dtype, and a factor: logits are factor * states @ matrix (+ bias)."""
        dtype = jnp.dtype(self.config.dtype)
        if self.config.logits_via_embedding:
            return parameters["token_embedder"]["embedding"].astype(dtype).T, self.config.tied_logits_scale
        return parameters["decoder"]["logits_dense"]["kernel"].astype(dtype), 1.0

    def encode(
        self, parameters: Parameters, inputs: Int[Array, "B K"], is_read: Int[Array, "B K"] | None = None
    ) -> Float[Array, "B K D"]:
        """Returns the encoder's states, without dropout; padding is where `is_read`, or else `inputs`, is 0."""
        batch = {"encoder_input_tokens": inputs}
        if is_read is not None:
            batch["encoder_is_read"] = is_read
        return apply_module(self._module, parameters, batch, True, method=Transformer.encode)

    def decode(self, parameters: Parameters, batch: Batch, encoded: Float[Array, "B K D"]) -> Float[Array, "B Q D"]:
        """Returns an encoder-decoder's states that `head` turns into logits; `encoded` is `encode` of the inputs."""
        return apply_module(self._module, parameters, batch, encoded, method=Transformer.decode)

    def cached_decoder(
        self,
        parameters: Parameters,
        inputs: Int[Array, "B K"],
        max_tokens: int,
        encoded: Float[Array, "B K D"] | None = None,
        is_read: Int[Array, "B K"] | None = None,
        by_rows: bool = False,
    ) -> tuple[DecodeStep, Cache]:
        """Returns the decode step and an empty KV cache of an encoder-decoder, without dropout.

        The inputs are encoded, unless `encoded`, what `encode` returns for them, is given. Padding is as for `encode`.
        `by_rows`: see `layers.dense_by_rows`.
        """
        if encoded is None:
            encoded = self.encode(parameters, inputs, is_read)
        if is_read is None:
            is_read = inputs
        return cached_decoder(self.config, parameters, encoded, is_read, max_tokens, by_rows)

    def cached_language_model(
        self,
        parameters: Parameters,
        prompt: Int[Array, "B P"],
        max_tokens: int,
        is_prefix: bool = False,
        by_rows: bool = False,
    ) -> tuple[DecodeStep, Cache]:
        """Reads the prompts, padded with -1 on the left; returns a decoder-only network's decode step and KV cache.

        With `is_prefix` they are the inputs of rows of inputs and targets, which `prefix_attention` is for. `by_rows`:
        see `layers.dense_by_rows`.
        """
        return cached_language_model(self.config, parameters, prompt, max_tokens, is_prefix, by_rows)
