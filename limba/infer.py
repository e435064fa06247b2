"""Greedy infilling: what a span-corruption model writes into the gaps of a text."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from limba import decoding
from limba.config import GenerationConfig
from limba.model import Model

EOS = 1


@functools.partial(jax.jit, static_argnames=("model", "config"))
def generate(
    model: Model,
    params: Any,
    inputs: Int[Array, "B K"],
    banned: Bool[Array, " V"],
    config: GenerationConfig,
    keys: Key[Array, " B"] | None = None,
) -> decoding.Generated:
    """Returns what the model writes for inputs padded with 0; `keys`, one per input, where it draws."""
    step, cache = model.cached_decoder(params, inputs, config.max_tokens)
    prompt = jnp.zeros((inputs.shape[0], 1), jnp.int32)  # T5 starts with its padding
    return decoding.generate(step, cache, prompt, banned, config, eos_id=EOS, keys=keys)


def greedy(model: Model, params: Any, inputs: Int[Array, "B K"], num_tokens: int, num_ids: int) -> Int[Array, "B Q"]:
    """Returns the likeliest continuation token by token, 0 after the end of sequence.

    Ids from `num_ids` on, the rows that only pad the embedding, are never produced.
    """
    banned = jnp.asarray(decoding.banned_mask(model.config.vocab_size, num_ids))
    return generate(model, params, inputs, banned, GenerationConfig(max_tokens=num_tokens)).tokens[:, 0]


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
    text, plain = [], []
    for token in map(int, inputs):
        if token in order:
            text += [vocabulary.decode(plain), "[" + vocabulary.decode(spans.get(order[token], [])) + "]"]
            plain = []
        elif token > EOS:
            plain.append(token)
    return " ".join(part for part in [*text, vocabulary.decode(plain)] if part)
