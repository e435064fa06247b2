"""Generates text, and scores it: a T5 maps inputs to targets, a language model continues prompts."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from limba.config import GenerationConfig, InputError, LossConfig
from limba.data.packing import model_features
from limba.data.stream.placement import place_batch
from limba.data.vocabulary.load import Vocabulary, decoded, num_sentinels, sentinel_ids
from limba.inference import limits, search
from limba.model import Network
from limba.sharding.mesh import batch_sharding, num_batch_groups
from limba.training.losses import at_predicted, cross_entropy

START, EOS = 0, 1  # the decoder's start id; T5's end of sequence
SENTINEL = re.compile(r"<extra_id_(\d+)>")
INPUT_STEP, PROMPT_STEP = 32, 16  # inputs and prompts are padded to a multiple, so that few programs are compiled


class Gaps(NamedTuple):
    """The ids that begin a gap's fill in a T5's targets, and those that may come first in it; bool [V] each."""

    is_sentinel: Bool[Array | np.ndarray, " V"]
    may_begin: Bool[Array | np.ndarray, " V"]


class Plan(NamedTuple):
    """What a compiled program is for. With `is_prefix` a language model reads prompts as the inputs of its rows."""

    network: Network
    config: GenerationConfig
    eos_id: int = EOS
    is_prefix: bool = False


class Given(NamedTuple):
    """What a program computes with: rows of a T5's inputs, padded with 0, or of prompts, padded with -1 on the left.

    Sampling needs `keys`, one per row. With `gaps` no gap is left empty.
    """

    inputs: Int[Array, "B K"]
    banned: Bool[Array | np.ndarray, " V"]
    keys: Key[Array, " B"] | None = None
    gaps: Gaps | None = None


@functools.partial(jax.jit, static_argnames=("plan",))
def generate(plan: Plan, params: PyTree, given: Given) -> search.Generated:
    """Returns the tokens that follow each row."""
    step, cache, prompt, rules = searched(plan, params, given)
    return search.generate(step, cache, prompt, rules)


def searched(
    plan: Plan, params: PyTree, given: Given, encoded: Float[Array, "B K D"] | None = None
) -> tuple[search.Step, PyTree, Int[Array, "B P"], search.Rules]:
    """Returns what is searched over: the step, its cache, the prompts and the rules.

    `encoded`: a T5's inputs, if they are.
    """
    network, max_tokens = plan.network, plan.config.max_tokens
    if network.config.is_decoder_only:
        step, cache = network.cached_language_model(params, given.inputs, max_tokens, plan.is_prefix)
        prompt = given.inputs
    else:
        step, cache = network.cached_decoder(params, given.inputs, max_tokens, encoded)
        prompt = jnp.full((given.inputs.shape[0], 1), START, jnp.int32)
    step = step if given.gaps is None else functools.partial(_filling, step, given.gaps)
    return step, cache, prompt, search.Rules(jnp.asarray(given.banned), plan.config, plan.eos_id, given.keys)


def _filling(step: search.Step, gaps: Gaps, cache: PyTree, last: Array, position: Array) -> tuple[Array, PyTree]:
    """Returns the step's logits, without the ids that may not begin a fill where the token before is a sentinel."""
    logits, cache = step(cache, last, position)
    is_banned = gaps.is_sentinel[last][:, None] & ~gaps.may_begin[None]
    return jnp.where(is_banned, -jnp.inf, logits), cache


def greedy(
    network: Network,
    params: PyTree,
    inputs: Int[Array | np.ndarray, "B K"],
    num_tokens: int,
    num_ids: int,
    eos_id: int = EOS,
    banned_ids: Iterable[int] = (),
) -> Int[Array, "B Q"]:
    """Returns the most likely token at each place, 0 after the end of sequence; `inputs` as for `generate`.

    Ids from `num_ids` on (padding of the embedding) and `banned_ids` are never generated.
    """
    banned = jnp.asarray(search.banned_mask(network.config.vocab_size, num_ids, banned_ids))
    config = GenerationConfig(max_tokens=num_tokens)
    return generate(Plan(network, config, eos_id), params, Given(jnp.asarray(inputs), banned)).tokens[:, 0]


class Written(NamedTuple):
    """A text, its score and its ids, int32 [Q], as in `search.Generated`.

    A language model's text begins with its prompt; its ids do not.
    """

    text: str
    score: float
    ids: np.ndarray


def batches_of_like_lengths(lengths: Sequence[int], num_rows: int) -> Iterator[list[int]]:
    """Yields the indices of the rows of each batch, the longest rows first.

    >>> list(batches_of_like_lengths([3, 9, 4], 2))
    [[1, 2], [0]]
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    for start in range(0, len(order), num_rows):
        yield order[start : start + num_rows]


@dataclasses.dataclass
class Writer:
    """Generates text for inputs of any length, in batches of like lengths over all devices of the mesh.

    All processes call it with the same inputs, and all get the texts. With `is_prefix` a language model reads a prompt
    as the inputs of its rows; its texts begin with the prompt unless `with_prompt` is False. With `gaps` a T5 leaves no
    gap empty. After the `deadline` TimeIsOverError is raised. Raises InputError if the mesh does not divide `num_rows`.
    """

    network: Network
    mesh: Mesh
    vocabulary: Vocabulary
    config: GenerationConfig
    num_rows: int
    is_prefix: bool = False
    with_prompt: bool = True
    gaps: Gaps | None = None
    deadline: Deadline | None = None

    def __post_init__(self) -> None:
        check_rows(self.mesh, self.num_rows)
        limits.check_generation(self.network.config, self.config, self.num_rows, self.mesh)
        self._continues, self._eos_id = self.network.config.is_decoder_only, int(self.vocabulary.eos_id or EOS)
        self._sharding = batch_sharding(self.mesh)
        banned = [START] if self._continues else []
        if self.config.ban_sentinels:
            banned += sentinel_ids(self.vocabulary, num_sentinels(self.vocabulary))
            banned += [] if self._continues else sorted(getattr(self.vocabulary, "special_ids", ()))
        self._banned = search.banned_mask(self.network.config.vocab_size, self.vocabulary.vocab_size, banned)
        # The seed is in the keys: another one needs no other program.
        self._plan = Plan(self.network, dataclasses.replace(self.config, seed=0), self._eos_id, self.is_prefix)

    def batches(self, inputs: Sequence[np.ndarray]) -> Iterator[list[int]]:
        """Yields the indices of the inputs of each batch."""
        return batches_of_like_lengths([len(ids) for ids in inputs], self.num_rows)

    def check(self, inputs: Sequence[np.ndarray]) -> None:
        """Raises InputError if a language model has too few learned positions for one of the inputs."""
        if self._continues:
            check_positions(self.network, max(map(len, inputs), default=0), self.config.max_tokens)

    def write(self, params: PyTree, inputs: Sequence[np.ndarray], numbers: Sequence[int]) -> list[list[Written]]:
        """Returns `num_samples` texts for each input of one batch; samples depend only on the input's index.

        `inputs` are ids from `ids_of`. Raises InputError if a language model has too few learned positions.
        """
        keys = None
        if self.config.sample:
            all_numbers = np.zeros(self.num_rows, np.uint32)
            all_numbers[: len(numbers)] = numbers
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(self.config.seed), all_numbers)
        padded = self._padded(inputs)
        placed = jax.make_array_from_callback(padded.shape, self._sharding, lambda index: padded[index])
        given = Given(placed, self._banned, keys, self.gaps)
        write = generate if self.deadline is None else functools.partial(generate_in_parts, deadline=self.deadline)
        found = write(self._plan, params, given)
        rows = zip(inputs, fetched(found.tokens), fetched(found.scores), strict=False)
        return [
            [Written(self._text(read, ids), float(s), ids) for ids, s in zip(*each, strict=True)]
            for read, *each in rows
        ]

    def write_all(self, params: PyTree, inputs: Sequence[np.ndarray]) -> list[list[Written]]:
        """Returns the texts of all inputs, in their order."""
        found: list[list[Written]] = [[] for _ in inputs]
        for numbers in self.batches(inputs):
            for number, samples in zip(numbers, self.write(params, [inputs[i] for i in numbers], numbers), strict=True):
                found[number] = samples
        return found

    def _padded(self, inputs: Sequence[np.ndarray]) -> Int[np.ndarray, "B K"]:
        longest = max(1, *map(len, inputs))
        if not self._continues:
            return padded(inputs, self.num_rows, INPUT_STEP)
        check_positions(self.network, longest, self.config.max_tokens)
        width = -(-longest // PROMPT_STEP) * PROMPT_STEP
        rows = np.full((self.num_rows, width), -1, np.int32)
        rows[:, -1] = START  # of the rows that pad the batch
        for row, ids in enumerate(inputs):
            rows[row, width - len(ids) :] = ids
        return rows

    def _text(self, read: np.ndarray, written: np.ndarray) -> str:
        ids = [int(token) for token in written]
        ids = ids[: ids.index(self._eos_id)] if self._eos_id in ids else ids
        kept = [token for token in ids if token > 0]
        shown = read[1:].tolist() if self._continues and self.with_prompt else []
        return decoded(self.vocabulary, [*shown, *kept])


def padded(rows: Sequence[np.ndarray], num_rows: int, step: int = INPUT_STEP) -> Int[np.ndarray, "B L"]:
    """Returns rows of ids, zero-padded to the longest and up to a multiple of `step`."""
    width = -(-max(1, *map(len, rows)) // step) * step
    found = np.zeros((num_rows, width), np.int32)
    for row, ids in enumerate(rows):
        found[row, : len(ids)] = ids
    return found


def check_rows(mesh: Mesh, num_rows: int) -> None:
    """Raises InputError where so many rows do not divide over the mesh."""
    groups = num_batch_groups(mesh)
    if num_rows % groups:
        raise InputError(
            f"A batch of {num_rows} inputs does not divide over {groups} groups of devices; give a multiple."
        )


def check_positions(network: Network, num_ids: int, max_tokens: int) -> None:
    """Raises InputError if a prompt and its continuation need more positions than the model has learned."""
    config = network.config
    if config.positions == "learned" and num_ids + max_tokens > config.max_length:
        raise InputError(
            f"The text has {num_ids} tokens and {max_tokens} more may follow; the model has {config.max_length}"
            " positions: give a shorter text, or a smaller max_tokens."
        )


def fetched(array: jax.Array) -> np.ndarray:
    """Returns the full value of a global array, on every process."""
    if jax.process_count() == 1:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def ids_of(text: str, vocabulary: Vocabulary, length: int | None = None, ends: bool = True) -> np.ndarray:
    """Returns a text's ids, int32 [<= length], with the end of sequence if `ends`.

    <extra_id_0> and so on become sentinels. Raises InputError for one that the vocabulary lacks.
    """
    sentinels = sentinel_ids(vocabulary, 1 + max(map(int, SENTINEL.findall(text)), default=-1))
    ids: list[int] = []
    for place, part in enumerate(SENTINEL.split(text)):  # odd parts are the numbers of the regular expression's group
        if place % 2:
            ids.append(sentinels[int(part)])
        elif part.strip():
            ids += vocabulary.encode(part)
    ends_with = [int(vocabulary.eos_id or EOS)] if ends else []
    return np.asarray([*ids[: None if length is None else length - len(ends_with)], *ends_with], np.int32)


def prompt_ids(text: str, vocabulary: Vocabulary) -> np.ndarray:
    """Returns a prompt's ids as a language model reads them, int32 [L]: the start first, no end."""
    return np.asarray([START, *vocabulary.encode(text)], np.int32)


class TimeIsOverError(Exception):
    """An answer has taken longer than its time; `num_tokens` had been written, or None."""

    def __init__(self, seconds: float, num_tokens: int | None = None):
        super().__init__(f"no answer within {seconds:g} seconds")
        self.seconds, self.num_tokens = seconds, num_tokens


class Deadline:
    """The end of so many seconds, counted from its creation by `clock`.

    `watch` is given the ids that the first text has so far, [Q], each time that the clock is looked at.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        watch: Callable[[Int[np.ndarray, " Q"]], None] | None = None,
    ):
        self.seconds, self.clock, self.watch = seconds, clock, watch
        self._end = clock() + seconds

    def left(self) -> float:
        """Returns the seconds until then, negative after it."""
        return self._end - self.clock()

    def check(self, num_tokens: int | None = None) -> None:
        """Raises TimeIsOverError after it."""
        if self.left() <= 0:
            raise TimeIsOverError(self.seconds, num_tokens)


PART, WATCHED_PART = 16, 4  # tokens between two looks at the clock


@functools.partial(jax.jit, static_argnames=("plan",))
def _begin(plan: Plan, params: PyTree, given: Given) -> tuple[Float[Array, "B K D"] | None, search.State]:
    encoded = None if plan.network.config.is_decoder_only else plan.network.encode(params, given.inputs)
    _, cache, prompt, _ = searched(plan, params, given, encoded)
    return encoded, search.start(cache, prompt, plan.config)


@functools.partial(jax.jit, static_argnames=("plan",))
def _advance(
    plan: Plan,
    params: PyTree,
    given: Given,
    encoded: Float[Array, "B K D"] | None,
    state: search.State,
    until: Int[Array, ""],
) -> tuple[search.State, Bool[Array, ""]]:
    # What only the beginning needs, such as a language model's reading of its prompt, the compiler leaves out.
    step, _, prompt, rules = searched(plan, params, given, encoded)
    state = search.advance(step, state, until, prompt.shape[1], rules)
    return state, search.is_over(state, plan.config)


def generate_in_parts(plan: Plan, params: PyTree, given: Given, deadline: Deadline) -> search.Generated:
    """Returns what `generate.generate` returns; raises TimeIsOverError soon after the deadline.

    The clock is looked at after each PART tokens, or WATCHED_PART where somebody watches; a program that is being
    compiled is waited for.
    """
    encoded, state = _begin(plan, params, given)
    num_written, is_over = 0, False
    prompt_length = given.inputs.shape[1] if plan.network.config.is_decoder_only else 1
    part = PART if deadline.watch is None else WATCHED_PART
    while not is_over:
        deadline.check(num_written)
        state, ended = _advance(plan, params, given, encoded, state, jnp.int32(num_written + part))
        is_over, num_written = bool(ended), int(state.position)
        if deadline.watch is not None:
            deadline.watch(fetched(search.first_text(state))[prompt_length : prompt_length + num_written])
    return search.result(state, prompt_length, plan.config)


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
def row_log_likelihoods(network: Network, params: PyTree, batch: dict[str, Int[Array, "B L"]]) -> Float[Array, " B"]:
    """Returns the sum of ln p of the targets of each row that have a weight."""
    targets, weights = at_predicted(batch, batch["decoder_target_tokens"], batch["decoder_loss_weights"])
    _, nats, _ = cross_entropy(network.apply(params, batch), targets, LossConfig(z_loss=0.0))
    return -jnp.sum(nats * weights, axis=1)


@functools.partial(jax.jit, static_argnames=("network",))
def _logits(network: Network, params: PyTree, batch: dict[str, Int[Array, "B L"]]) -> Float[Array, "B L V"]:
    return network.apply(params, batch)


def log_likelihoods(
    network: Network, params: PyTree, mesh: Mesh, pairs: Sequence[Pair], num_rows: int, is_prefix: bool = False
) -> Float[np.ndarray, " N"]:
    """Returns ln p(targets | inputs) of each pair, in batches of similar lengths; targets include their end.

    A language model reads inputs (the ids of `prompt_ids`) and targets as one sequence, with `is_prefix` as a row of
    inputs and targets. Raises InputError if that is longer than its learned positions, or if the mesh does not divide
    `num_rows`.
    """
    check_rows(mesh, num_rows)
    limits.check_scoring(network.config, num_rows, mesh)
    found = np.zeros(len(pairs), np.float32)
    for numbers, _, batch in _batches(network, mesh, pairs, num_rows, is_prefix):
        found[numbers] = fetched(row_log_likelihoods(network, params, batch))[: len(numbers)]
    return found


def logits(
    network: Network, params: PyTree, mesh: Mesh, pairs: Sequence[Pair], num_rows: int, is_prefix: bool = False
) -> list[Float[np.ndarray, "Q V"]]:
    """Returns the logits of each pair, one row per target token; see `log_likelihoods`."""
    found: list[np.ndarray] = [np.zeros(0)] * len(pairs)
    for numbers, weights, batch in _batches(network, mesh, pairs, num_rows, is_prefix):
        for number, row, weight in zip(numbers, fetched(_logits(network, params, batch)), weights, strict=False):
            found[number] = row[weight > 0]
    return found


def _batches(
    network: Network, mesh: Mesh, pairs: Sequence[Pair], num_rows: int, is_prefix: bool
) -> Iterator[tuple[list[int], np.ndarray, dict[str, jax.Array]]]:
    """Yields (the indices of a batch's pairs, the weights of their target tokens, the batch on the devices)."""
    for numbers in batches_of_like_lengths([len(inputs) for inputs, _ in pairs], num_rows):
        features = features_of(network, [pairs[i] for i in numbers], num_rows, is_prefix)
        yield numbers, features["decoder_loss_weights"], place_batch(features, batch_sharding(mesh))


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
