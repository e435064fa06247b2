"""The losses of an encoder's own heads, as sums: cross entropy of labels, squared errors, pairs of vectors."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from limba.config import LossConfig
from limba.model import Batch, Network
from limba.model.trees import Parameters
from limba.training.losses import Sums, cross_entropy, weighted_sums

Outputs = tuple[Float[Array, "B Q N"], Int[Array, "B Q"], Float[Array, "B Q"]]


def label_outputs(model: Network, params: Parameters, batch: Batch, key: Array | None) -> Outputs:
    """Returns the head's outputs, the labels from 0 on (a score's bits), and the weights, 1 where there is a label."""
    outputs = model.apply(params, batch, key)
    labels = batch["decoder_labels"][:, : outputs.shape[1]]
    numbers = labels if model.config.head == "score" else jnp.maximum(labels - 1, 0)
    return outputs, numbers, (labels != 0).astype(jnp.float32)


def scores_of(bits: Int[Array, "B Q"]) -> Float[Array, "B Q"]:
    """Returns the float32 scores that rows hold as int32.

    >>> scores_of(jnp.array([[1067030938]])).tolist()
    [[1.2000000476837158]]
    """
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def label_sums(
    model: Network, loss: LossConfig, params: Parameters, batch: Batch, key: Array | None
) -> tuple[Sums, Outputs | None]:
    """Returns the sums of `step.loss_sums`, whose `tokens` are the labels, and what gave them; of vectors nothing.

    A score's loss is the squared error, as transformers' regression.
    """
    if model.config.head == "vectors":
        return _contrastive_sums(model, loss, params, batch, key), None
    outputs, labels, weights = found = label_outputs(model, params, batch, key)
    if model.config.head == "score":
        errors = jnp.square(outputs[..., 0] - scores_of(labels))
        per_label = (errors, errors, jnp.zeros_like(errors))
    else:
        per_label = cross_entropy(outputs, labels, loss)
    sums = weighted_sums(per_label, weights)
    return {**sums, "weights": sums["tokens"]}, found


def _contrastive_sums(model: Network, loss: LossConfig, params: Parameters, batch: Batch, key: Array | None) -> Sums:
    """Returns the sums over pairs of InfoNCE: which of the batch's second texts is a first one's own.

    The cosines, divided by the temperature, are the logits (Gao et al. 2021, SimCSE, arXiv:2104.08821, section 2.1;
    Wang et al. 2022, E5, arXiv:2212.03533, section 4.1). A second text equal to a row's own is no wrong answer.
    """
    others = batch["decoder_labels"]
    second = {"decoder_input_tokens": others, "decoder_target_tokens": others}
    keys = (None, None) if key is None else jax.random.split(key)
    vectors = [model.apply(params, rows, one)[:, 0] for rows, one in zip((batch, second), keys, strict=True)]
    first, other = (each / jnp.maximum(jnp.linalg.norm(each, axis=1, keepdims=True), 1e-12) for each in vectors)
    real = (batch["decoder_input_tokens"][:, 0] > 0).astype(jnp.float32)
    cosines = jnp.einsum("bd,cd->bc", first, other, precision=jax.lax.Precision.HIGHEST) / loss.temperature
    logits = jnp.where(_is_answer(others), cosines, -1e9)
    places = jnp.arange(len(others))[None]
    sums = weighted_sums(cross_entropy(logits[None], places, loss), real[None])
    return {**sums, "weights": sums["tokens"]}


def _is_answer(others: Int[Array, "B L"]) -> Bool[Array, "B B"]:
    """Returns which second text [·, C] a row [B, ·] may choose: its own, and others that are neither padding nor it."""
    same = jnp.all(others[:, None] == others[None], axis=-1)
    return jnp.eye(len(others), dtype=bool) | (~same & (others[:, 0] > 0)[None])
