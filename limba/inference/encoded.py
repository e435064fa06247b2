"""What an encoder gives for texts: vectors, and the outputs of its own head as labels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from limba.config import InputError, ModelConfig
from limba.data.objectives.labels import framed, joined, word_encoder
from limba.data.stream.placement import place_batch
from limba.data.vocabulary.special_ids import SpecialIds
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.inference.generate import batches_of_like_lengths, fetched, padded
from limba.inference.texts import listed, whole_letters
from limba.model import Network
from limba.model.heads import mean_over
from limba.model.trees import Batch, Parameters
from limba.sharding.mesh import batch_sharding


def of_each(
    compute: Callable[[Int[Array, "B L"], Int[Array, " B"]], Array],
    ids: Sequence[np.ndarray],
    num_rows: int,
    mesh: Mesh,
) -> list[np.ndarray]:
    """Returns the row of each text in what `compute` gives for batches of tokens and lengths."""
    found: list[np.ndarray] = [np.zeros(0)] * len(ids)
    for numbers in batches_of_like_lengths([len(each) for each in ids], num_rows):
        tokens, lengths = padded([ids[i] for i in numbers], num_rows), np.ones(num_rows, np.int32)
        lengths[: len(numbers)] = [len(ids[i]) for i in numbers]
        placed = place_batch({"tokens": tokens, "lengths": lengths}, batch_sharding(mesh))
        rows = fetched(compute(placed["tokens"], placed["lengths"]))
        for number, row in zip(numbers, rows, strict=False):
            found[number] = row
    return found


def _batch_of(tokens: Int[Array, "B L"], lengths: Int[Array, " B"]) -> Batch:
    real = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
    targets = jnp.where(real, jnp.maximum(tokens, 1), 0)  # a language model takes rows that are 0 for padding
    return {"decoder_input_tokens": tokens, "decoder_target_tokens": targets}


@functools.partial(jax.jit, static_argnames=("network", "poolings", "is_published"))
def pooled(
    network: Network,
    poolings: tuple[str, ...],
    is_published: bool,
    params: Parameters,
    tokens: Int[Array, "B L"],
    lengths: Int[Array, " B"],
) -> Float[Array, "B D"]:
    """Returns each text's vector of its hidden states; those of several poolings stand one after the other.

    `is_published`: 0 may be text, so that a T5's padding is told by the lengths.
    """
    if network.config.is_decoder_only:
        states = network.apply(params, _batch_of(tokens, lengths), as_states=True)
    elif is_published:
        is_read = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
        states = network.encode(params, tokens, is_read.astype(jnp.int32))
    else:
        states = network.encode(params, tokens)
    return jnp.concatenate([_pooled(states.astype(jnp.float32), lengths, pooling) for pooling in poolings], axis=-1)


def _pooled(states: Float[Array, "B L D"], lengths: Int[Array, " B"], pooling: str) -> Float[Array, "B D"]:
    """Returns one vector of each text; the weights of a weighted mean are 1, 2, 3, … (SGPT, arXiv:2202.08904)."""
    positions = jnp.arange(states.shape[1])[None]
    real = positions < lengths[:, None]
    if pooling == "mean":
        return mean_over(states, real)
    if pooling == "mean_sqrt_len":
        return mean_over(states, real) * jnp.sqrt(lengths)[:, None]
    if pooling == "max":
        return jnp.where(real[..., None], states, -jnp.inf).max(axis=1)
    if pooling == "weighted_mean":
        weights = jnp.where(real, positions + 1.0, 0.0)[..., None]
        return (states * weights).sum(axis=1) / weights.sum(axis=1)
    place = lengths - 1 if pooling == "last" else jnp.zeros_like(lengths)
    return jnp.take_along_axis(states, place[:, None, None], axis=1)[:, 0]


def cut(ids: Int[np.ndarray, " L"], length: int | None, end: int | None) -> Int[np.ndarray, " L"]:
    """Returns at most `length` ids of a text: its last ones go, but for its end, as transformers truncates."""
    if length is None or len(ids) <= length:
        return ids
    if ids[-1] == end:
        return np.append(ids[: length - 1], ids[-1:])
    return ids[:length]


@functools.partial(jax.jit, static_argnames=("network",))
def outputs(
    network: Network, params: Parameters, tokens: Int[Array, "B L"], lengths: Int[Array, " B"]
) -> Float[Array, "B Q N"]:
    """Returns the outputs of an encoder's own head: probabilities of its labels, or a score."""
    found = network.apply(params, _batch_of(tokens, lengths))
    return jax.nn.softmax(found, axis=-1) if network.config.has_labels else found


def named_labels(config: ModelConfig, row: Float[np.ndarray, " N"]) -> dict[str, float]:
    """Returns {label: probability}, the likeliest first; of a score {"score": it}."""
    names = config.labels or ("score",)
    return {names[place]: float(row[place]) for place in np.argsort(-row, kind="stable").tolist()}


def sentence_ids(
    sentences: Sequence[Sequence[str]], vocabulary: Vocabulary, special: SpecialIds, length: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the ids of sentences, each a list of words, and the places of the words' first pieces.

    Raises InputError for a sentence without words, and for one of more than `length` tokens.
    """
    pieces, ids, starts = word_encoder(vocabulary), list[np.ndarray](), list[np.ndarray]()
    around = framed(special, length)
    for number, words in enumerate(sentences):
        found = pieces(list(map(whole_letters, listed(words))))
        size = sum(map(len, found))
        if not 0 < size <= length - len(around(np.zeros(0, np.int32))[0]):
            raise InputError(
                f"The sentence {number} has {len(words)} words and {size:,} tokens; give a word or more, and less than"
                f" {length:,} tokens."
            )
        tokens, begins = joined(found)
        framed_ids, place = around(tokens)
        ids.append(framed_ids)
        starts.append(place + begins)
    return ids, starts
