"""Generates text, and scores it: a T5 maps inputs to targets, a language model continues prompts."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
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
from limba.data.vocabulary.around_gaps import encode_parts
from limba.data.vocabulary.load import Vocabulary, decoded, num_sentinels, sentinel_ids, sentinel_table
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.special_ids import END, START, SpecialIds, of_run
from limba.inference import limits, search
from limba.model import Network
from limba.sharding.mesh import batch_sharding, num_batch_groups
from limba.training.losses import at_predicted, cross_entropy

logger = logging.getLogger(__name__)

SENTINEL = re.compile(r"<extra_id_(\d+)>")
T5_LAYOUT = SpecialIds()
INPUT_STEP, PROMPT_STEP = 32, 16  # inputs and prompts are padded to a multiple, so that few programs are compiled


class Gaps(NamedTuple):
    """The ids that begin a gap's fill in a T5's targets, and those that may come first in it; bool [V] each."""

    is_sentinel: Bool[Array | np.ndarray, " V"]
    may_begin: Bool[Array | np.ndarray, " V"]


class Plan(NamedTuple):
    """What a compiled program is for. With `is_prefix` a language model reads prompts as the inputs of its rows."""

    network: Network
    config: GenerationConfig
    ends: tuple[int, ...] = (END,)
    is_prefix: bool = False
    start: int = START  # a T5's decoder begins with it


class Given(NamedTuple):
    """What a program computes with: rows of a T5's inputs, padded with 0, or of prompts, padded with -1 on the left.

    Sampling needs `keys`, one per row. With `gaps` no gap is left empty. `is_read` says which of a T5's inputs are
    text, where 0 may be text.
    """

    inputs: Int[Array, "B K"]
    banned: Bool[Array | np.ndarray, " V"]
    keys: Key[Array, " B"] | None = None
    gaps: Gaps | None = None
    is_read: Int[Array, "B K"] | None = None


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
        step, cache = network.cached_decoder(params, given.inputs, max_tokens, encoded, given.is_read)
        prompt = jnp.full((given.inputs.shape[0], 1), plan.start, jnp.int32)
    step = step if given.gaps is None else functools.partial(_filling, step, given.gaps)
    return step, cache, prompt, search.Rules(jnp.asarray(given.banned), plan.config, plan.ends, given.keys)


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
    special: SpecialIds = T5_LAYOUT,
    banned_ids: Iterable[int] = (),
) -> Int[Array, "B Q"]:
    """Returns the most likely token at each place, 0 after the end of sequence; `inputs` as for `generate`.

    Ids from `num_ids` on (padding of the embedding) and `banned_ids` are never generated.
    """
    banned = jnp.asarray(search.banned_mask(network.config.vocab_size, num_ids, banned_ids))
    config = GenerationConfig(max_tokens=num_tokens)
    plan = Plan(network, config, special.ends, start=special.generation_start)
    return generate(plan, params, Given(jnp.asarray(inputs), banned)).tokens[:, 0]


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
    special: SpecialIds | None = None  # None: those of a run with this vocabulary

    def __post_init__(self) -> None:
        check_rows(self.mesh, self.num_rows)
        limits.check_generation(self.network.config, self.config, self.num_rows, self.mesh)
        self._continues = self.network.config.is_decoder_only
        self._special = self.special or of_run(self.vocabulary, self.network.config)
        if self._special.unsupported:
            raise InputError(
                f"generation_config.json has {' and '.join(self._special.unsupported)}, which Limba's search does not"
                " have; take it out to generate without it."
            )
        if self._special.passed_over:
            logger.warning(
                "The model's files ask for %s, which Limba's search does not have: transformers writes other texts.",
                " and ".join(self._special.passed_over),
            )
        self._sharding = batch_sharding(self.mesh)
        num_rows = self.network.config.vocab_size
        self._banned = search.banned_mask(num_rows, self._num_ids(), self._banned_ids())
        # The seed is in the keys: another one needs no other program.
        plan = Plan(self.network, dataclasses.replace(self.config, seed=0), self._special.ends, self.is_prefix)
        self._plan = plan._replace(start=self._special.generation_start)

    def _num_ids(self) -> int:
        """Returns how many ids may be written: those with a piece. transformers may write every row of a folder."""
        return self.network.config.vocab_size if self._special.is_published else self.vocabulary.vocab_size

    def _banned_ids(self) -> list[int]:
        """Returns the ids that are never written: a run's start, sentinels if wished, and what a folder suppresses."""
        banned = list(self._special.suppressed)
        if self._continues and not self._special.is_published:
            banned.append(START)
        if self.config.ban_sentinels:
            banned += sentinel_ids(self.vocabulary, num_sentinels(self.vocabulary))
            if not (self._continues or self._special.is_published):
                banned += sorted(getattr(self.vocabulary, "special_ids", ()))
        return banned

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
        placed = self._placed(padded)
        is_read = None
        if self._special.is_published and not self._continues:
            is_read = self._placed(read_places(inputs, self.num_rows))
        given = Given(placed, self._banned, keys, self.gaps, is_read)
        write = generate if self.deadline is None else functools.partial(generate_in_parts, deadline=self.deadline)
        found = write(self._plan, params, given)
        rows = zip(inputs, fetched(found.tokens), fetched(found.scores), strict=False)
        return [
            [self._sample(read, ids, float(score)) for ids, score in zip(samples, scores, strict=True)]
            for read, samples, scores in rows
        ]

    def _placed(self, rows: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(rows.shape, self._sharding, lambda index: rows[index])

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
        rows[:, -1] = START  # of the rows that pad the batch: any id
        for row, ids in enumerate(inputs):
            rows[row, width - len(ids) :] = ids
        return rows

    def _sample(self, read: np.ndarray, written: np.ndarray, score: float) -> Written:
        """Returns a text of the ids that are written, up to the first end."""
        ends = np.flatnonzero(np.isin(written, self._special.ends))
        size = int(ends[0]) if len(ends) else len(written)
        if not self._special.is_published:
            kept = [token for token in written[:size].tolist() if token > 0]
            shown = read[1:].tolist() if self._continues and self.with_prompt else []
            return Written(decoded(self.vocabulary, [*shown, *kept]), score, written)
        ids = written.copy()
        ids[size + 1 :] = self._special.filling
        shown = read.tolist() if self._continues and self.with_prompt else []
        # An end is a special token, which is no text; where it is an ordinary one, transformers shows it.
        return Written(self._published_text(read, [*shown, *ids[: size + 1].tolist()]), score, ids)

    def _published_text(self, read: np.ndarray, ids: list[int]) -> str:
        """Returns the text of ids without special tokens, as transformers' `skip_special_tokens` has it.

        Where the input has gaps, its sentinels stay: they say which gap the text after them fills.
        """
        sentinels = {number: place for place, number in enumerate(sentinel_table(self.vocabulary))}
        text_of = getattr(self.vocabulary, "text_of", self.vocabulary.decode)
        if self._continues or not any(number in sentinels for number in read.tolist()):
            return text_of(ids)
        text = ""
        for is_sentinel, group in itertools.groupby(ids, sentinels.__contains__):
            run = list(group)
            names = [f"<extra_id_{sentinels[number]}>" for number in run] if is_sentinel else []
            text += "".join(names) or f" {text_of(run)} "
        return text.strip()


def padded(
    rows: Sequence[np.ndarray], num_rows: int, step: int = INPUT_STEP, filling: int = 0
) -> Int[np.ndarray, "B L"]:
    """Returns rows of ids, padded with `filling` to the longest and up to a multiple of `step`."""
    width = -(-max(1, *map(len, rows)) // step) * step
    found = np.full((num_rows, width), filling, np.int32)
    for row, ids in enumerate(rows):
        found[row, : len(ids)] = ids
    return found


def read_places(rows: Sequence[np.ndarray], num_rows: int, step: int = INPUT_STEP) -> Int[np.ndarray, "B L"]:
    """Returns 1 where `padded` has an id of a row, 0 where it has padding."""
    return padded([np.ones(len(ids), np.int32) for ids in rows], num_rows, step)


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


def text_ids(text: str, vocabulary: Vocabulary) -> list[int]:
    """Returns a text's ids without what stands around it.

    <extra_id_0> and so on become sentinels, and the text beside them is cut as in span corruption.
    Of a folder for transformers they are those of its own tokenizer, for which the name of each special token is that
    token. Raises InputError for a sentinel that a vocabulary of ours lacks.
    """
    if isinstance(vocabulary, PublishedVocabulary):
        return list(vocabulary.encode(text))
    parts = SENTINEL.split(text)  # odd ones are the numbers of the regular expression's group
    gaps = [int(number) for number in parts[1::2]]
    sentinels = sentinel_ids(vocabulary, 1 + max(gaps, default=-1))
    first, *others = encode_parts(vocabulary, parts[::2])
    ids = list(first)
    for gap, part in zip(gaps, others, strict=True):
        ids.append(sentinels[gap])
        ids += part
    return ids


def ids_of(text: str, vocabulary: Vocabulary, length: int | None = None, ends: bool = True) -> np.ndarray:
    """Returns a text's ids as a T5 of ours reads them, int32 [<= length], with the end of sequence if `ends`."""
    end = END if vocabulary.eos_id is None else int(vocabulary.eos_id)
    return np.asarray(SpecialIds(after=(end,)).framed(text_ids(text, vocabulary), length, ends), np.int32)


def input_ids(text: str, vocabulary: Vocabulary, special: SpecialIds, length: int | None = None) -> np.ndarray:
    """Returns a text's ids as a T5 reads them, int32 [<= length]: in the template, with the end of sequence."""
    return np.asarray(special.framed(text_ids(text, vocabulary), length), np.int32)


def target_ids(
    text: str,
    vocabulary: Vocabulary,
    special: SpecialIds,
    length: int | None = None,
    ends: bool = True,
    follows: bool = False,
) -> np.ndarray:
    """Returns a text's ids as a model writes them, int32 [<= length], with the end of sequence if `ends`.

    With `follows` they go on with what a language model has read.
    """
    return np.asarray(special.target(text_ids(text, vocabulary), length, ends, follows), np.int32)


def prompt_ids(text: str, vocabulary: Vocabulary, special: SpecialIds) -> np.ndarray:
    """Returns a prompt's ids as a language model reads them, int32 [L]: in the template, which has a start or none.

    An empty prompt without a start is the start alone, as in transformers. Raises InputError for a model without one.
    """
    ids = special.framed(list(vocabulary.encode(text)))
    if not ids:
        ids = [_start_of(special)]
    return np.asarray(ids, np.int32)


def read_before(text: str, vocabulary: Vocabulary, special: SpecialIds) -> np.ndarray:
    """Returns what a language model has read before a target that is scored: `prompt_ids` without an end."""
    ids = special.framed(list(vocabulary.encode(text)), ends=False)
    if not ids:
        ids = [_start_of(special)]
    return np.asarray(ids, np.int32)


def _start_of(special: SpecialIds) -> int:
    if special.start is None:
        raise InputError(
            "The prompt is empty, and the model has no token that a text begins with (bos_token_id); give a prompt."
        )
    return special.start


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
    encoded = None
    if not plan.network.config.is_decoder_only:
        encoded = plan.network.encode(params, given.inputs, given.is_read)
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
    found = np.zeros(len(pairs), np.float32)
    for numbers, _, batch in _batches(network, mesh, pairs, num_rows, is_prefix, special):
        found[numbers] = fetched(row_log_likelihoods(network, params, batch))[: len(numbers)]
    return found


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
    found: list[np.ndarray] = [np.zeros(0)] * len(pairs)
    for numbers, weights, batch in _batches(network, mesh, pairs, num_rows, is_prefix, special):
        for number, row, weight in zip(numbers, fetched(_logits(network, params, batch)), weights, strict=False):
            found[number] = row[weight > 0]
    return found


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

    In T5's layout a decoder begins with 0, and 0 is never text. Of another model the first id is its own, and the
    lengths of the rows say what is text.
    """
    if special.is_published:
        return _published_features(network, pairs, num_rows, is_prefix, special)
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


def _published_features(
    network: Network, pairs: Sequence[Pair], num_rows: int, is_prefix: bool, special: SpecialIds
) -> dict[str, Int[np.ndarray, "B L"]]:
    """Returns `features_of` a folder's model, whose masks come from lengths."""
    is_decoder = network.config.is_decoder_only
    begin = np.asarray([] if is_decoder else [special.decoder_start], np.int32)
    rows = [np.concatenate([inputs if is_decoder else begin, targets]).astype(np.int32) for inputs, targets in pairs]
    if is_decoder:
        check_positions(network, max(map(len, rows)) - 1, 0)
    read, written = [row[:-1] for row in rows], [row[1:] for row in rows]
    features = {
        "decoder_input_tokens": padded(read, num_rows),
        "decoder_target_tokens": read_places(read, num_rows),  # says only which places are text
        "scored_tokens": padded(written, num_rows),
        "decoder_loss_weights": read_places(read, num_rows),
    }
    if not is_decoder:
        inputs = [inputs for inputs, _ in pairs]
        return features | {
            "encoder_input_tokens": padded(inputs, num_rows),
            "encoder_is_read": read_places(inputs, num_rows),
        }
    if is_prefix:
        features["decoder_causal_attention"] = np.zeros_like(features["decoder_input_tokens"])
    for row, (inputs, _) in enumerate(pairs):
        features["decoder_loss_weights"][row, : len(inputs) - 1] = 0
        if is_prefix:
            features["decoder_causal_attention"][row, : len(inputs)] = 1
    return features
