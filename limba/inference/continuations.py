"""What a decoder-only model writes on from prompts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Array, Bool, Int, Key

from limba.config import EvaluationConfig, GenerationConfig, InputError
from limba.data.vocabulary.load import num_sentinels
from limba.inference import search as decoding
from limba.model import Network

START = 0  # what the decoder reads first
PROMPT_STEP = 16  # prompts are filled up to a multiple of it, so that few lengths are compiled


@functools.partial(jax.jit, static_argnames=("model", "config", "eos_id"))
def _go_on(
    model: Network,
    params: Any,
    prompt: Int[Array, "B P"],
    banned: Bool[Array, " V"],
    config: GenerationConfig,
    eos_id: int,
    keys: Key[Array, " B"],
) -> Int[Array, "B S Q"]:
    step, cache = model.cached_language_model(params, prompt, config.max_tokens)
    return decoding.generate(step, cache, prompt, banned, config, eos_id=eos_id, keys=keys).tokens


def continuations(
    model: Network, params: Any, vocabulary: Any, prompts: Sequence[str], config: GenerationConfig
) -> list[list[str]]:
    """Returns for each prompt the texts of a decoder-only model, each with its prompt before it.

    All processes of a run call it alike. ConfigError where prompt and text are longer than learned positions.
    """
    ids = [[START, *vocabulary.encode(prompt)] for prompt in prompts]
    width = -(-max(map(len, ids)) // PROMPT_STEP) * PROMPT_STEP
    most = model.config.max_length
    if model.config.positions == "learned" and max(map(len, ids)) + config.max_tokens > most:
        raise InputError(
            f"The prompt has {max(map(len, ids))} tokens and {config.max_tokens} shall follow; the model has {most}"
            " positions: give a shorter prompt, or fewer tokens."
        )
    prompt = np.full((len(ids), width), -1, np.int32)
    for row, each in enumerate(ids):
        prompt[row, width - len(each) :] = each
    sentinels = range(vocabulary.vocab_size - num_sentinels(vocabulary), vocabulary.vocab_size)
    unwritten = (START, *config.banned_ids, *(sentinels if config.ban_sentinels else ()))
    banned = decoding.banned_mask(model.config.vocab_size, vocabulary.vocab_size, unwritten)
    keys = jax.random.split(jax.random.key(config.seed), len(ids))
    eos_id = int(vocabulary.eos_id)
    tokens = _go_on(model, params, jnp.asarray(prompt), jnp.asarray(banned), config, eos_id, keys)
    if jax.process_count() > 1:
        tokens = multihost_utils.process_allgather(tokens, tiled=True)

    def text(read: list[int], written: np.ndarray) -> str:
        return vocabulary.decode([*read[1:], *(int(token) for token in written if token not in (START, eos_id))])

    return [[text(read, written) for written in several] for read, several in zip(ids, np.asarray(tokens), strict=True)]


def sampler(model: Network, vocabulary: Any, config: EvaluationConfig) -> Callable[[Any], dict[str, list[str]]] | None:
    """Returns a function from the parameters to each prompt's texts, or None where nothing is to be gone on with."""
    prompts = config.prompts
    if not prompts or not model.config.is_decoder_only:
        return None
    return lambda params: dict(
        zip(prompts, continuations(model, params, vocabulary, prompts, config.sampling), strict=True)
    )
