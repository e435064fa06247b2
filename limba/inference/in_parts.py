"""Generates text in parts of a few tokens each, so that it can be ended when its time is over."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from limba.config import GenerationConfig
from limba.inference import search
from limba.inference.deadline import Deadline
from limba.inference.generate import Gaps, searched
from limba.model import Network

LEAST = 4  # tokens of a part


def part(num_written: int, seconds_per_token: float, left: float) -> int:
    """Returns how many tokens the next part has: as many as were written, or those that the time left is enough for.

    >>> part(0, 0.0, 60.0), part(16, 0.1, 60.0), part(64, 1.0, 10.0), part(64, 1.0, 1.0)
    (4, 16, 10, 4)
    """
    in_time = num_written if seconds_per_token <= 0 else int(left / seconds_per_token)
    return max(LEAST, min(num_written, in_time))


@functools.partial(jax.jit, static_argnames=("network", "config", "is_prefix"))
def _begin(
    network: Network, params: Any, inputs: Int[Array, "B K"], config: GenerationConfig, is_prefix: bool
) -> tuple[Float[Array, "B K D"] | None, search.State]:
    encoded = None if network.config.is_decoder_only else network.encode(params, inputs)
    _, cache, prompt = searched(network, params, inputs, config, is_prefix, None, encoded)
    return encoded, search.start(cache, prompt, config)


@functools.partial(jax.jit, static_argnames=("network", "config", "eos_id", "is_prefix"))
def _advance(
    network: Network,
    params: Any,
    inputs: Int[Array, "B K"],
    encoded: Float[Array, "B K D"] | None,
    state: search.State,
    until: Int[Array, ""],
    banned: Bool[Array, " V"],
    config: GenerationConfig,
    eos_id: int,
    keys: Key[Array, " B"] | None,
    is_prefix: bool,
    gaps: Gaps | None,
) -> tuple[search.State, Bool[Array, ""]]:
    # What only the beginning needs, such as a language model's reading of its prompt, the compiler leaves out.
    step, _, prompt = searched(network, params, inputs, config, is_prefix, gaps, encoded)
    state = search.advance(step, state, until, prompt.shape[1], banned, config, eos_id=eos_id, keys=keys)
    return state, search.is_over(state, config)


def generate(
    network: Network,
    params: Any,
    inputs: Int[Array, "B K"],
    banned: Any,
    config: GenerationConfig,
    eos_id: int,
    keys: Key[Array, " B"] | None,
    is_prefix: bool,
    gaps: Gaps | None,
    deadline: Deadline,
) -> search.Generated:
    """Returns what `generate.generate` returns; raises TimeIsOverError soon after the deadline.

    The clock is looked at between parts: a program that is being compiled, or a part that is longer than was expected
    from the last one, is waited for.
    """
    banned = jnp.asarray(banned)
    encoded, state = _begin(network, params, inputs, config, is_prefix)
    num_written, seconds_per_token, is_over = 0, 0.0, False
    while not is_over:
        jax.block_until_ready(state)
        deadline.check(num_written)
        began, before = deadline.clock(), num_written
        until = min(config.max_tokens, before + part(before, seconds_per_token, deadline.left()))
        state, ended = _advance(
            network, params, inputs, encoded, state, jnp.int32(until), banned, config, eos_id, keys, is_prefix, gaps
        )
        is_over, num_written = bool(ended), int(state.position)
        seconds_per_token = (deadline.clock() - began) / max(1, num_written - before)
    prompt_length = inputs.shape[1] if network.config.is_decoder_only else 1
    return search.result(state, prompt_length, config)
