"""Logits and log likelihoods of targets given their inputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from limba.config import LossConfig
from limba.data.packing import model_features
from limba.data.stream.placement import place_batch
from limba.inference.generate import batches_of_like_lengths, check_positions, check_rows, fetched, padded
from limba.model import Network
from limba.sharding.mesh import batch_sharding
from limba.training.losses import cross_entropy

Pair = tuple[np.ndarray, np.ndarray]  # ids of the inputs and of the targets


class Score(NamedTuple):
    """The likelihood of a text."""

    log_likelihood: float  # ln p(targets | inputs)
    tokens: int  # number of target tokens, including the end of sequence
    bits_per_byte: float  # -log2 p(targets | inputs) / UTF-8 bytes of the targets


def score_of(log_likelihood: float, num_tokens: int, text: str) -> Score:
    """Returns the score of a text.

    >>> score_of(-2 * math.log(2), 3, "ab")
    Score(log_likelihood=-1.3862943611198906, tokens=3, bits_per_byte=1.0)
    """
    num_bytes = max(1, len(text.encode("utf-8", "replace")))
    return Score(log_likelihood, num_tokens, -log_likelihood / math.log(2) / num_bytes)


@functools.partial(jax.jit, static_argnames=("network",))
def _log_likelihoods(network: Network, params: Any, batch: dict[str, Int[Array, "B L"]]) -> Float[Array, " B"]:
    logits = network.apply(params, batch)
    _, nats, _ = cross_entropy(logits, batch["decoder_target_tokens"], LossConfig(z_loss=0.0))
    return -jnp.sum(nats * batch["decoder_loss_weights"], axis=1)


@functools.partial(jax.jit, static_argnames=("network",))
def _logits(network: Network, params: Any, batch: dict[str, Int[Array, "B L"]]) -> Float[Array, "B L V"]:
    return network.apply(params, batch)


def log_likelihoods(
    network: Network, params: Any, mesh: Mesh, pairs: Sequence[Pair], num_rows: int, is_prefix: bool = False
) -> Float[np.ndarray, " N"]:
    """Returns ln p(targets | inputs) of each pair, in batches of similar lengths; targets include their end.

    A language model reads inputs (the ids of `prompt_ids`) and targets as one sequence, with `is_prefix` as a row of
    inputs and targets. Raises InputError if that is longer than its learned positions, or if the mesh does not divide
    `num_rows`.
    """
    check_rows(mesh, num_rows)
    found = np.zeros(len(pairs), np.float32)
    for numbers in batches_of_like_lengths([len(inputs) for inputs, _ in pairs], num_rows):
        features = features_of(network, [pairs[i] for i in numbers], num_rows, is_prefix)
        batch = place_batch(features, batch_sharding(mesh))
        found[numbers] = fetched(_log_likelihoods(network, params, batch))[: len(numbers)]
    return found


def logits(
    network: Network, params: Any, mesh: Mesh, pairs: Sequence[Pair], num_rows: int, is_prefix: bool = False
) -> list[Float[np.ndarray, "Q V"]]:
    """Returns the logits of each pair, one row per target token; see `log_likelihoods`."""
    found: list[np.ndarray] = [np.zeros(0)] * len(pairs)
    for numbers in batches_of_like_lengths([len(inputs) for inputs, _ in pairs], num_rows):
        features = features_of(network, [pairs[i] for i in numbers], num_rows, is_prefix)
        rows = fetched(_logits(network, params, place_batch(features, batch_sharding(mesh))))
        for row, number in enumerate(numbers):
            found[number] = rows[row][features["decoder_loss_weights"][row] > 0]
    return found


def features_of(
    network: Network, pairs: Sequence[Pair], num_rows: int, is_prefix: bool = False
) -> dict[str, Int[np.ndarray, "B L"]]:
    """Returns the batch of a network's features: the pairs, then rows of zeros; `is_prefix` as in `log_likelihoods`."""
    if not network.config.is_decoder_only:
        inputs, targets = zip(*pairs, strict=True)
        return model_features({"inputs": padded(inputs, num_rows), "targets": padded(targets, num_rows)})
    check_positions(network, max(len(inputs) + len(targets) for inputs, targets in pairs) - 1, 0)
    features = model_features({"targets": padded([np.concatenate([i[1:], t]) for i, t in pairs], num_rows)})
    if is_prefix:
        features["decoder_causal_attention"] = np.zeros_like(features["decoder_target_tokens"])
    for row, (inputs, _) in enumerate(pairs):
        features["decoder_loss_weights"][row, : len(inputs) - 1] = 0
        if is_prefix:
            features["decoder_causal_attention"][row, : len(inputs)] = 1
    return features
