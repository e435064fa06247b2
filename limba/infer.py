"""Greedy infilling: what a span-corruption model writes into the gaps of a text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from limba.model import Model

EOS = 1


@functools.partial(jax.jit, static_argnames=("model", "num_tokens", "num_ids"))
def greedy(model: Model, params: Any, inputs: Int[Array, "B K"], num_tokens: int, num_ids: int) -> Int[Array, "B Q"]:
    """Returns the likeliest continuation token by token, 0 after the end of sequence.

    Ids from `num_ids` on, the rows that only pad the embedding, are never produced. Every step runs
    the decoder over all positions: right for a few short texts, not for a corpus.
    """
    rows = inputs.shape[0]
    visible = jnp.ones((rows, num_tokens), jnp.int32)

    def step(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        tokens, ended = state  # position 0 is the start token, 0
        features = {
            "encoder_input_tokens": inputs,
            "decoder_input_tokens": tokens[:, :-1],
            "decoder_target_tokens": visible,
        }
        logits = model.apply(params, features)[:, i, :num_ids]
        token = jnp.where(ended, 0, jnp.argmax(logits, axis=-1)).astype(jnp.int32)
        return tokens.at[:, i + 1].set(token), ended | (token == EOS)

    start = (jnp.zeros((rows, num_tokens + 1), jnp.int32), jnp.zeros(rows, bool))
    tokens, _ = jax.lax.fori_loop(0, num_tokens, step, start)
    return tokens[:, 1:]


def join_infill(inputs: np.ndarray, targets: np.ndarray, sentinels: np.ndarray, vocabulary: Any) -> str:
    """Returns the corrupted text with each sentinel replaced by [what the targets put there].

    `inputs` and `targets` are token ids of one example; ids 0 and 1 (padding, end) are left out.
    """
    order = {int(sentinel): i for i, sentinel in enumerate(sentinels)}
    spans: dict[int, list[int]] = {}
    current: list[int] | None = None
    for token in map(int, targets):
        if token in order:
            current = spans.setdefault(order[token], [])
        elif token > EOS and current is not None:
            current.append(token)
    return _joined(inputs, order, vocabulary, lambda i: f"[{vocabulary.decode(spans.get(i, []))}]")


def masked_text(inputs: np.ndarray, sentinels: np.ndarray, vocabulary: Any) -> str:
    """Returns the corrupted text with each sentinel by its name, <extra_id_0> and so on."""
    order = {int(sentinel): i for i, sentinel in enumerate(sentinels)}
    return _joined(inputs, order, vocabulary, lambda i: f"<extra_id_{i}>")


def _joined(inputs: np.ndarray, order: Mapping[int, int], vocabulary: Any, gap: Callable[[int], str]) -> str:
    text, plain = [], []
    for token in map(int, inputs):
        if token in order:
            text += [vocabulary.decode(plain), gap(order[token])]
            plain = []
        elif token > EOS:
            plain.append(token)
    return " ".join(part for part in [*text, vocabulary.decode(plain)] if part)
