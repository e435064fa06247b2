"""Generates tokens one by one, for any network: greedy, beam search, sampling, banned tokens and n-grams.

The rules and results are the same as in transformers' `generate` (beams: `_beam_search` of 5.x), so that a converted
model generates the same text there.

A network gives a `Step`: (cache, last ids [R], position) -> (logits [R, V], cache). `position` counts the decode
steps, 0 at the prompt's last token. A cache is any tree of arrays with the rows on axis 0. Put what all texts of an
input share, such as the encoder's keys and values, into the step's closure, since a cache is copied for each beam. The
rows of an input are adjacent, R = B x beams: `x.reshape(B, beams, ...)` has the beams of an input on axis 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from limba.config import GenerationConfig
from limba.inference.candidates import best, draw

NEVER = -1.0e9  # the lowest score; finite as in transformers, so that sums are not NaN
UNWRITTEN = -1  # in a search's tokens: the places after what is written, which no n-gram may match
PADDING = 0  # in its place in the result

Cache = PyTree
Step = Callable[[Cache, Int[Array, " R"], Int[Array, ""]], tuple[Float[Array, "R V"], Cache]]


class Rules(NamedTuple):
    """What may be written, and how it is chosen. Sampling needs `keys`, one per input: its text depends on no other."""

    banned: Bool[Array, " V"]
    config: GenerationConfig
    ends: tuple[int, ...]
    keys: Key[Array, " B"] | None = None


class Generated(NamedTuple):
    """The generated texts of each input, S of them; with beams, best first.

    `tokens` are padded after the end of sequence. `scores` are sums of the tokens' log probabilities: before bans and
    sampling rules, or for beams after them and divided by length^penalty.
    """

    tokens: Int[Array, "B S Q"]
    scores: Float[Array, "B S"]


def banned_mask(num_rows: int, num_ids: int, ids: Iterable[int] = ()) -> Bool[np.ndarray, " V"]:
    """Returns True at ids that may not be generated: padding rows of the embedding, and `ids`."""
    mask = np.arange(num_rows) >= num_ids
    mask[[i for i in ids if i < num_rows]] = True
    return mask


def is_end(ids: Int[Array, "*B"], ends: tuple[int, ...]) -> Bool[Array, "*B"]:
    """Returns True at the ids that end a text."""
    is_one_of = [ids == end for end in ends]
    return functools.reduce(jnp.logical_or, is_one_of) if is_one_of else jnp.zeros_like(ids, bool)


def generate(step: Step, cache: Cache, prompt: Int[Array, "B P"], rules: Rules) -> Generated:
    """Returns the tokens after the prompts. It is traceable: the caller jits it together with the network.

    `cache` holds all of a prompt but its last token (an encoder-decoder's prompt is just the start token). Shorter
    prompts are padded with -1 on the left.
    """
    state = start(cache, prompt, rules.config)
    state = advance(step, state, rules.config.max_tokens, prompt.shape[1], rules)
    return result(state, prompt.shape[1], rules.config)


class _Rows(NamedTuple):
    """The texts of greedy decoding or sampling, one a row."""

    position: Int[Array, ""]
    tokens: Int[Array, "R L"]
    ended: Bool[Array, " R"]
    scores: Float[Array, " R"]
    cache: Cache


class _Beams(NamedTuple):
    """`running` are M unfinished texts per input, `finished` the best M that have ended."""

    position: Int[Array, ""]
    running: Int[Array, "B M L"]
    running_scores: Float[Array, "B M"]  # sums of log probabilities
    finished: Int[Array, "B M L"]
    finished_scores: Float[Array, "B M"]  # over length^penalty
    is_finished: Bool[Array, "B M"]
    improvable: Bool[Array, " B"]  # a running beam may still beat a finished one
    cache: Cache


State = _Rows | _Beams  # of a search after `position` tokens


def start(cache: Cache, prompt: Int[Array, "B P"], config: GenerationConfig) -> State:
    """Returns the state before the first token; see `generate`."""
    rows = prompt.shape[0]
    copies = config.num_beams if config.num_beams > 1 else config.num_samples
    cache = jax.tree.map(lambda leaf: jnp.repeat(leaf, copies, axis=0), cache)
    # The prompts, each `copies` times, with room for the generated tokens.
    tokens = jnp.repeat(prompt, copies, axis=0)
    tokens = jnp.pad(tokens, ((0, 0), (0, config.max_tokens)), constant_values=UNWRITTEN)
    position = jnp.zeros((), jnp.int32)
    if config.num_beams == 1:
        num_rows = rows * copies
        return _Rows(position, tokens, jnp.zeros(num_rows, bool), jnp.zeros(num_rows, jnp.float32), cache)
    tokens = tokens.reshape(rows, copies, -1)
    first_alone = jnp.where(jnp.arange(copies) == 0, 0.0, NEVER)  # else all beams would be the same
    return _Beams(
        position=position,
        running=tokens,
        running_scores=jnp.broadcast_to(first_alone, (rows, copies)).astype(jnp.float32),
        finished=tokens,
        finished_scores=jnp.full((rows, copies), NEVER, jnp.float32),
        is_finished=jnp.zeros((rows, copies), bool),
        improvable=jnp.ones(rows, bool),
        cache=cache,
    )


def advance(step: Step, state: State, until: int | Int[Array, ""], prompt_length: int, rules: Rules) -> State:
    """Returns the state after `until` tokens, or after fewer if the search is over; see `generate`."""
    config = rules.config
    keys = rules.keys
    if config.sample and config.num_beams == 1:
        assert keys is not None, "sampling needs keys"
        numbers = jnp.tile(jnp.arange(config.num_samples), keys.shape[0])
        keys = jax.vmap(jax.random.fold_in)(jnp.repeat(keys, config.num_samples), numbers)
    extend: Callable = _extend if isinstance(state, _Beams) else _append
    body = functools.partial(extend, step=step, rules=rules._replace(keys=keys), prompt_length=prompt_length)
    first: PyTree = state
    return jax.lax.while_loop(lambda state: (state.position < until) & ~is_over(state, config), body, first)


def is_over(state: State, config: GenerationConfig) -> Bool[Array, ""]:
    """Returns whether no further token can change the texts."""
    is_full = state.position >= config.max_tokens
    if isinstance(state, _Rows):
        return is_full | jnp.all(state.ended)
    all_ended = jnp.all(state.is_finished) if config.early_stopping is True else False
    return is_full | ~jnp.any(state.improvable) | jnp.asarray(all_ended)


def result(state: State, prompt_length: int, config: GenerationConfig) -> Generated:
    """Returns the texts of a search that is over."""
    samples = config.num_samples
    if isinstance(state, _Rows):
        tokens = _written(state.tokens, prompt_length)
        return Generated(tokens.reshape(-1, samples, tokens.shape[-1]), state.scores.reshape(-1, samples))
    rows = state.finished.shape[0]
    best = _written(state.finished[:, :samples].reshape(rows * samples, -1), prompt_length)
    return Generated(best.reshape(rows, samples, -1), state.finished_scores[:, :samples])


def first_text(state: State) -> Int[Array, " L"]:
    """Returns the prompt and the tokens so far of the first text, or of the beam that is the best of its input."""
    return state.tokens[0] if isinstance(state, _Rows) else state.running[0, 0]


def _written(tokens: Int[Array, "R L"], prompt_length: int) -> Int[Array, "R Q"]:
    written = tokens[..., prompt_length:]
    return jnp.where(written == UNWRITTEN, PADDING, written)


def _append(state: _Rows, *, step: Step, rules: Rules, prompt_length: int) -> _Rows:
    """Returns the rows with one more token: the likeliest, or one drawn by temperature, top-k and top-p."""
    position, tokens, ended, scores, cache = state
    config = rules.config
    length = prompt_length + position
    last = jax.lax.dynamic_index_in_dim(tokens, length - 1, axis=1, keepdims=False)
    logits, cache = step(cache, jnp.where(ended, PADDING, last), position)
    allowed = _apply_bans(logits, tokens, length, rules.banned, config.no_repeat_ngram_size)
    if config.sample:
        assert rules.keys is not None
        chosen = draw(allowed, jax.vmap(jax.random.fold_in, (0, None))(rules.keys, position), config)
    else:
        chosen = jnp.argmax(allowed, axis=-1)
    chosen = chosen.astype(jnp.int32)
    scores = scores + jnp.where(ended, 0.0, _log_probability(logits, chosen))
    token = jnp.where(ended, UNWRITTEN, chosen)
    tokens = jax.lax.dynamic_update_index_in_dim(tokens, token, length, axis=1)
    return _Rows(position + 1, tokens, ended | is_end(chosen, rules.ends), scores, cache)


def _log_probability(logits: Float[Array, "R V"], ids: Int[Array, " R"]) -> Float[Array, " R"]:
    chosen = jnp.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def _apply_bans(
    logits: Float[Array, "R V"], tokens: Int[Array, "R L"], length: Int[Array, ""], banned: Array, ngram_size: int
) -> Float[Array, "R V"]:
    """Returns the logits with -inf at banned tokens; `length` counts the tokens so far, including the prompt."""
    logits = jnp.where(banned[None], -jnp.inf, logits)
    if ngram_size:
        logits = jnp.where(_repeats(tokens, length, ngram_size, logits.shape[-1]), -jnp.inf, logits)
    return logits


def _repeats(tokens: Int[Array, "R L"], length: Int[Array, ""], size: int, num_ids: int) -> Bool[Array, "R V"]:
    """Returns True at tokens that would repeat an n-gram."""
    rows, total = tokens.shape
    num_windows = total - size + 1
    if num_windows < 1:
        return jnp.zeros((rows, num_ids), bool)
    same = jnp.broadcast_to(length >= size, (rows, num_windows))
    for i in range(size - 1):
        current = jax.lax.dynamic_index_in_dim(tokens, length + 1 - size + i, axis=1)
        same = same & (tokens[:, i : i + num_windows] == jnp.broadcast_to(current, same.shape))
    endings = tokens[:, size - 1 :]
    repeated = jnp.where(same & (endings != UNWRITTEN), endings, num_ids)  # an index out of range is dropped
    none = jnp.zeros((rows, num_ids), bool)
    return none.at[jnp.arange(rows)[:, None], repeated].set(True, mode="drop")


def _extend(state: _Beams, *, step: Step, rules: Rules, prompt_length: int) -> _Beams:
    """Returns the beams extended by one token."""
    config = rules.config
    rows, beams, total = state.running.shape
    length = prompt_length + state.position
    flat = state.running.reshape(rows * beams, total)
    last = jax.lax.dynamic_index_in_dim(flat, length - 1, axis=1, keepdims=False)
    logits, cache = step(state.cache, last, state.position)
    # So many that enough remain if the best end in every possible way, as in transformers.
    num_kept = max(2, 1 + len(rules.ends)) * beams
    log_probabilities, following = _likeliest(logits, flat, length, rules, num_kept)
    of_beams = log_probabilities.reshape(rows, beams, -1) + state.running_scores[..., None]
    top_scores, top = jax.lax.top_k(of_beams.reshape(rows, -1), min(num_kept, of_beams[0].size))
    parents = top // of_beams.shape[-1]
    ids = jnp.take_along_axis(following.reshape(rows, -1), top, axis=1).astype(jnp.int32)
    candidates = jnp.take_along_axis(state.running, parents[..., None], axis=1)
    candidates = jax.lax.dynamic_update_index_in_dim(candidates, ids, length, axis=2)
    ends = is_end(ids, rules.ends) | (state.position + 1 == config.max_tokens)

    running_scores, chosen = jax.lax.top_k(top_scores + jnp.where(ends, NEVER, 0.0), beams)
    parent = jnp.take_along_axis(parents, chosen, axis=1) + beams * jnp.arange(rows)[:, None]
    finished, finished_scores, is_finished = _finish(state, candidates, top_scores, ends, config)
    return _Beams(
        position=state.position + 1,
        running=jnp.take_along_axis(candidates, chosen[..., None], axis=1),
        running_scores=running_scores,
        finished=finished,
        finished_scores=finished_scores,
        is_finished=is_finished,
        improvable=_improvable(state, running_scores, finished_scores, is_finished, config),
        cache=jax.tree.map(lambda leaf: jnp.take(leaf, parent.reshape(-1), axis=0, mode="clip"), cache),
    )


def _likeliest(
    logits: Float[Array, "R V"], tokens: Int[Array, "R L"], length: Int[Array, ""], rules: Rules, num: int
) -> tuple[Float[Array, "R M"], Int[Array, "R M"]]:
    """Returns the `num` likeliest allowed ids of each row, and their log probabilities, as `log_softmax` has them."""
    allowed = _apply_bans(logits, tokens, length, rules.banned, rules.config.no_repeat_ngram_size)
    largest, ids = best(allowed, min(num, logits.shape[-1]))
    highest = jnp.max(logits, axis=-1, keepdims=True)
    # Along the axis along which a decode step on a CPU has computed them: else they are transposed.
    total = jnp.sum(jnp.exp(logits.T - highest.T), axis=0)
    return largest - highest - jnp.log(total)[:, None], ids


def _finish(
    state: _Beams, candidates: Array, top_scores: Array, ends: Array, config: GenerationConfig
) -> tuple[Array, Array, Array]:
    """Returns the best finished texts, old and new, their scores, and which of them are real."""
    beams = config.num_beams
    written = (state.position + 1).astype(jnp.float32)
    # Only the best num_beams candidates may end; the others can only continue.
    ends = ends & (jnp.arange(ends.shape[1]) < beams)[None]
    closed = ~state.improvable
    if config.early_stopping is True:
        closed = closed | jnp.all(state.is_finished, axis=1)
    scores = top_scores / written**config.length_penalty
    scores = scores + jnp.where(closed, NEVER, 0.0)[:, None] + jnp.where(ends, 0.0, NEVER)
    all_scores = jnp.concatenate([state.finished_scores, scores], axis=1)
    best_scores, chosen = jax.lax.top_k(all_scores, beams)
    all_tokens = jnp.concatenate([state.finished, candidates], axis=1)
    all_finished = jnp.concatenate([state.is_finished, ends], axis=1)
    tokens = jnp.take_along_axis(all_tokens, chosen[..., None], axis=1)
    return tokens, best_scores, jnp.take_along_axis(all_finished, chosen, axis=1)


def _improvable(
    state: _Beams, running_scores: Array, finished_scores: Array, is_finished: Array, config: GenerationConfig
) -> Bool[Array, " B"]:
    """Returns whether the best running beam may still beat the worst finished one, by transformers' estimate."""
    written = (state.position + 1).astype(jnp.float32)
    if config.early_stopping == "never" and config.length_penalty > 0:
        written = jnp.float32(config.max_tokens)
    possible = running_scores[:, 0] / written**config.length_penalty
    worst = jnp.where(is_finished, jnp.min(finished_scores, axis=1, keepdims=True), NEVER)
    return state.improvable & jnp.any(possible[:, None] > worst, axis=1)
