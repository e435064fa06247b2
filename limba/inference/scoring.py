"""How likely a model finds a text: the log likelihoods and logits of targets, given inputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from limba.config import LossConfig
from limba.data.packing import model_features
from limba.data.vocabulary.special_ids import SpecialIds
from limba.inference import limits
from limba.inference.generate import (
    T5_LAYOUT,
    batches_of_like_lengths,
    check_positions,
    check_rows,
    fetched,
    padded,
    read_mask,
)
from limba.model import Network
from limba.sharding.mesh import batch_sharding
from limba.training.losses import at_predicted, cross_entropy
from limba.training.placement import place_batch

Pair = tuple[np.ndarray, np.ndarray]  # ids of the inputs and of the targets


class Score(NamedTuple):
    """The likelihood of a text, or of as much of it as the model reads."""

    log_likelihood: float  # ln p(targets | inputs)
    tokens: int  # number of target tokens that were read, including the end of sequence
    bits_per_byte: float  # -log2 p(targets | inputs) / UTF-8 bytes of the targets that these tokens cover


def score_of(log_likelihood: float, num_tokens: int, num_bytes: int) -> Score:
    """Returns the score of a text of which so many tokens and bytes were read.

    >>> score_of(-2 * math.log(2), 3, 2)
    Score(log_likelihood=-1.3862943611198906, tokens=3, bits_per_byte=1.0)
    """
    return Score(log_likelihood, num_tokens, -log_likelihood / math.log(2) / max(1, num_bytes))


def log_likelihoods(
    network: Network,
    params: PyTree,
    mesh: Mesh,
    pairs: Sequence[Pair],
    num_rows: int,
    is_prefix: bool = False,
    special: SpecialIds = T5_LAYOUT,
) -> Float[np.ndarray, " N"]:
    """Returns ln p(targets | inputs) of each pair, in batches of similar lengths; targets include their end.

    A language model reads inputs (the ids of `read_before`) and targets as one sequence, with `is_prefix` as a row of
    inputs and targets. Raises InputError if that is longer than its learned positions, or if the mesh does not divide
    `num_rows`.
    """
    check_rows(mesh, num_rows)
    limits.check_scoring(network.config, num_rows, mesh)
    likelihoods = np.zeros(len(pairs), np.float32)
    for numbers, _, batch in _batches(network, mesh, pairs, num_rows, is_prefix, special):
        likelihoods[numbers] = fetched(row_log_likelihoods(network, params, batch))[: len(numbers)]
    return likelihoods


def logits(
    network: Network,
    params: PyTree,
    mesh: Mesh,
    pairs: Sequence[Pair],
    num_rows: int,
    is_prefix: bool = False,
    special: SpecialIds = T5_LAYOUT,
) -> list[Float[np.ndarray, "Q V"]]:
    """Returns the logits of each pair, one row per target token; see `log_likelihoods`."""
    logits_of_pairs: list[np.ndarray] = [np.zeros(0)] * len(pairs)
    for numbers, weights, batch in _batches(network, mesh, pairs, num_rows, is_prefix, special):
        # Not strict: after the pairs come the rows that pad the batch.
        for number, row, weight in zip(numbers, fetched(_logits(network, params, batch)), weights, strict=False):
            logits_of_pairs[number] = row[weight > 0]
    return logits_of_pairs


@functools.partial(jax.jit, static_argnames=("network",))
def row_log_likelihoods(network: Network, params: PyTree, batch: dict[str, Int[Array, "B L"]]) -> Float[Array, " B"]:
    """Returns the sum of ln p of the targets of each row that have a weight.

    They are `scored_tokens`, where 0 may be text, else `decoder_target_tokens`.
    """
    wanted = batch.get("scored_tokens", batch["decoder_target_tokens"])
    targets, weights = at_predicted(batch, wanted, batch["decoder_loss_weights"])
    _, nats, _ = cross_entropy(network.apply(params, batch), targets, LossConfig(z_loss=0.0))
    return -jnp.sum(nats * weights, axis=1)


@functools.partial(jax.jit, static_argnames=("network",))
def _logits(network: Network, params: PyTree, batch: dict[str, Int[Array, "B L"]]) -> Float[Array, "B L V"]:
    return network.apply(params, batch)


def _batches(
    network: Network, mesh: Mesh, pairs: Sequence[Pair], num_rows: int, is_prefix: bool, special: SpecialIds
) -> Iterator[tuple[list[int], np.ndarray, dict[str, jax.Array]]]:
    """Yields (the indices of a batch's pairs, the weights of their target tokens, the batch on the devices)."""
    for numbers in batches_of_like_lengths([len(inputs) for inputs, _ in pairs], num_rows):
        features = features_of(network, [pairs[i] for i in numbers], num_rows, is_prefix, special)
        yield numbers, features["decoder_loss_weights"], place_batch(features, batch_sharding(mesh))


def features_of(
    network: Network,
    pairs: Sequence[Pair],
    num_rows: int,
    is_prefix: bool = False,
    special: SpecialIds = T5_LAYOUT,
) -> dict[str, Int[np.ndarray, "B L"]]:
    """Returns the batch of a network's features: the pairs, then rows of zeros; `is_prefix` as in `log_likelihoods`.

    In T5's layout a decoder begins with 0, and 0 is never text. A folder's model has a first id of its own, and the
    lengths of its rows tell what is padding, since 0 may be text.
    """
    if special.is_published:
        return _published_features(network, pairs, num_rows, is_prefix, special)
    if not network.config.is_decoder_only:
        inputs, targets = zip(*pairs, strict=True)
        return model_features({"inputs": padded(inputs, num_rows), "targets": padded(targets, num_rows)})
    check_positions(network, max(len(inputs) + len(targets) for inputs, targets in pairs) - 1, 0)
    # One sequence each. Its start, the first id of the inputs, is put before it again as the decoder's first input.
    sequences = [np.concatenate([inputs[1:], targets]) for inputs, targets in pairs]
    features = model_features({"targets": padded(sequences, num_rows)})
    _mark_inputs(features, pairs, is_prefix)
    return features


def _published_features(
    network: Network, pairs: Sequence[Pair], num_rows: int, is_prefix: bool, special: SpecialIds
) -> dict[str, Int[np.ndarray, "B L"]]:
    """Returns `features_of` for a folder's model, whose masks come from lengths."""
    is_decoder = network.config.is_decoder_only
    begin = np.asarray([] if is_decoder else [special.decoder_start], np.int32)
    rows = [np.concatenate([inputs if is_decoder else begin, targets]).astype(np.int32) for inputs, targets in pairs]
    if is_decoder:
        check_positions(network, max(map(len, rows)) - 1, 0)
    read = [row[:-1] for row in rows]
    written = [row[1:] for row in rows]
    features = {
        "decoder_input_tokens": padded(read, num_rows),
        "decoder_target_tokens": read_mask(read, num_rows),  # says only which positions are text
        "scored_tokens": padded(written, num_rows),
        "decoder_loss_weights": read_mask(read, num_rows),
    }
    if not is_decoder:
        inputs = [inputs for inputs, _ in pairs]
        return features | {
            "encoder_input_tokens": padded(inputs, num_rows),
            "encoder_is_read": read_mask(inputs, num_rows),
        }
    _mark_inputs(features, pairs, is_prefix)
    return features


def _mark_inputs(features: dict[str, np.ndarray], pairs: Sequence[Pair], is_prefix: bool) -> None:
    """Gives a row's inputs no weight; with `is_prefix` also marks them as read in both directions. Changes features."""
    if is_prefix:
        features["decoder_causal_attention"] = np.zeros_like(features["decoder_target_tokens"])
    for row, (inputs, _) in enumerate(pairs):
        features["decoder_loss_weights"][row, : len(inputs) - 1] = 0
        if is_prefix:
            features["decoder_causal_attention"][row, : len(inputs)] = 1
