"""Generates text in batches: a T5 maps inputs to targets, a language model continues prompts."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from limba.config import GenerationConfig, InputError
from limba.data.vocabulary.generation_rules import differences
from limba.data.vocabulary.sentinels import decoded, num_sentinels, sentinel_ids, sentinel_table
from limba.data.vocabulary.special_ids import END, START, SpecialIds, of_run
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.formats.weights import say_once
from limba.inference import limits, search
from limba.model import Network
from limba.sharding.mesh import batch_sharding, num_batch_groups

T5_LAYOUT = SpecialIds()  # the ids with a role in a T5 of Limba
# Inputs and prompts are padded to a multiple, so that few programs are compiled.
INPUT_STEP = 32
PROMPT_STEP = 16
# Tokens between two looks at the clock, where there is a deadline.
TOKENS_PER_LOOK = 16
TOKENS_PER_WATCHED_LOOK = 4  # somebody sees the text grow
# On a CPU, with several texts: transposing base's matrices takes as long as its products save in 10 to 20 tokens.
LEAST_TOKENS_BY_ROWS = 32


class Gaps(NamedTuple):
    """The ids that begin a gap's fill in a T5's targets, and those that may come first in it; bool [V] each."""

    is_sentinel: Bool[Array | np.ndarray, " V"]
    may_begin: Bool[Array | np.ndarray, " V"]


class Plan(NamedTuple):
    """What a program is compiled for. With `is_prefix` a language model reads prompts as the inputs of its rows."""

    network: Network
    config: GenerationConfig
    ends: tuple[int, ...] = (END,)
    is_prefix: bool = False
    start: int = START  # a T5's decoder begins with it


class ProgramInputs(NamedTuple):
    """The arguments of a compiled program, besides the parameters.

    `ids` are rows of a T5's inputs, padded with 0, or of prompts, padded with -1 on the left. Sampling needs `keys`,
    one per row. With `gaps` no gap is left empty. `is_read` says which of a T5's inputs are text, where 0 may be text.
    """

    ids: Int[Array, "B K"]
    banned: Bool[Array | np.ndarray, " V"]
    keys: Key[Array, " B"] | None = None
    gaps: Gaps | None = None
    is_read: Int[Array, "B K"] | None = None


@functools.partial(jax.jit, static_argnames=("plan",))
def generate(plan: Plan, params: PyTree, inputs: ProgramInputs) -> search.Generated:
    """Returns the tokens that follow each row."""
    step, cache, prompt, rules = searched(plan, params, inputs, by_rows=_pays_for_rows(plan, inputs))
    return search.generate(step, cache, prompt, rules)


def _pays_for_rows(plan: Plan, inputs: ProgramInputs) -> bool:
    """Returns whether a program should transpose the matrices of its decode steps: for many tokens of several texts."""
    config = plan.config
    num_texts = inputs.ids.shape[0] * max(config.num_beams, config.num_samples)
    return jax.default_backend() == "cpu" and num_texts > 1 and config.max_tokens >= LEAST_TOKENS_BY_ROWS


def searched(
    plan: Plan,
    params: PyTree,
    inputs: ProgramInputs,
    encoded: Float[Array, "B K D"] | None = None,
    by_rows: bool = False,
) -> tuple[search.Step, PyTree, Int[Array, "B P"], search.Rules]:
    """Returns what `search` needs: the step, its cache, the prompts and the rules.

    `encoded` are a T5's encoded inputs; without them they are encoded here. `by_rows`: see `layers.dense_by_rows`.
    """
    network = plan.network
    max_tokens = plan.config.max_tokens
    if network.config.is_decoder_only:
        step, cache = network.cached_language_model(params, inputs.ids, max_tokens, plan.is_prefix, by_rows)
        prompt = inputs.ids
    else:
        step, cache = network.cached_decoder(params, inputs.ids, max_tokens, encoded, inputs.is_read, by_rows)
        prompt = jnp.full((inputs.ids.shape[0], 1), plan.start, jnp.int32)
    if inputs.gaps is not None:
        step = functools.partial(_fill_each_gap, step, inputs.gaps)
    return step, cache, prompt, search.Rules(jnp.asarray(inputs.banned), plan.config, plan.ends, inputs.keys)


def _fill_each_gap(step: search.Step, gaps: Gaps, cache: PyTree, last: Array, position: Array) -> tuple[Array, PyTree]:
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
    """Returns the most likely token at each position, 0 after the end of sequence; `inputs` as for `generate`.

    Ids from `num_ids` on (padding of the embedding) and `banned_ids` are never generated.
    """
    banned = jnp.asarray(search.banned_mask(network.config.vocab_size, num_ids, banned_ids))
    config = GenerationConfig(max_tokens=num_tokens)
    plan = Plan(network, config, special.ends, start=special.generation_start)
    return generate(plan, params, ProgramInputs(jnp.asarray(inputs), banned)).tokens[:, 0]


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
    special: SpecialIds | None = None  # None: as a run with this vocabulary has them

    def __post_init__(self) -> None:
        check_rows(self.mesh, self.num_rows)
        limits.check_generation(self.network.config, self.config, self.num_rows, self.mesh)
        self._continues = self.network.config.is_decoder_only
        self._special = self.special or of_run(self.vocabulary, self.network.config)
        self._check_rules()
        self._sharding = batch_sharding(self.mesh)
        num_rows = self.network.config.vocab_size
        self._banned = search.banned_mask(num_rows, self._num_ids(), self._banned_ids())
        # The seed is in the keys: another one needs no other program.
        plan = Plan(self.network, dataclasses.replace(self.config, seed=0), self._special.ends, self.is_prefix)
        self._plan = plan._replace(start=self._special.generation_start)

    def _check_rules(self) -> None:
        """Refuses rules of a folder that change a text, and says which of its search is not done here."""
        file = self._special.rules_file
        if self._special.unsupported:
            raise InputError(
                f"{file} has {' and '.join(self._special.unsupported)}, which Limba's search does not have; take it out"
                " to generate without it."
            )
        unknown, not_chosen = differences(self._special.search, self.config)
        if unknown:
            say_once(
                f"{file} asks for {' and '.join(unknown)}, which Limba's search does not have: transformers may write"
                " other texts."
            )
        if not_chosen:
            say_once(
                f"{file} asks for {' and '.join(not_chosen)}, which transformers does unless it is told otherwise, and"
                " this search does not: give GenerationConfig the same for its texts."
            )

    def _num_ids(self) -> int:
        """Returns how many ids may be written: those with a piece. transformers may write every row of a folder."""
        return self.network.config.vocab_size if self._special.is_published else self.vocabulary.vocab_size

    def _banned_ids(self) -> list[int]:
        """Returns the ids that are never written: a run's start, sentinels if banned, and what a folder suppresses."""
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

        `inputs` are ids from `token_ids`. Raises InputError if a language model has too few learned positions.
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
            is_read = self._placed(read_mask(inputs, self.num_rows))
        program_inputs = ProgramInputs(placed, self._banned, keys, self.gaps, is_read)
        if self.deadline is None:
            generated = generate(self._plan, params, program_inputs)
        else:
            generated = generate_in_parts(self._plan, params, program_inputs, self.deadline)
        texts_of_inputs = []
        # Not strict: after the inputs come the rows that pad the batch.
        rows = zip(inputs, fetched(generated.tokens), fetched(generated.scores), strict=False)
        for read, samples, scores in rows:
            texts_of_inputs.append(
                [self._sample(read, ids, float(score)) for ids, score in zip(samples, scores, strict=True)]
            )
        return texts_of_inputs

    def _placed(self, rows: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(rows.shape, self._sharding, lambda index: rows[index])

    def write_all(self, params: PyTree, inputs: Sequence[np.ndarray]) -> list[list[Written]]:
        """Returns the texts of all inputs, in their order."""
        texts_of_inputs: list[list[Written]] = [[] for _ in inputs]
        for numbers in self.batches(inputs):
            batch = [inputs[number] for number in numbers]
            for number, samples in zip(numbers, self.write(params, batch, numbers), strict=True):
                texts_of_inputs[number] = samples
        return texts_of_inputs

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
        # The first end is decoded too: a special token gives no text, and an ordinary one is shown by transformers.
        return Written(self._published_text(read, [*shown, *ids[: size + 1].tolist()]), score, ids)

    def _published_text(self, read: np.ndarray, ids: list[int]) -> str:
        """Returns the text of ids without special tokens, as transformers' `skip_special_tokens` has it.

        Where the input has gaps, its sentinels stay: they say which gap the text after them fills.
        """
        number_of_sentinel = {id: number for number, id in enumerate(sentinel_table(self.vocabulary))}
        text_of = getattr(self.vocabulary, "text_of", self.vocabulary.decode)
        if self._continues or number_of_sentinel.keys().isdisjoint(read.tolist()):
            return text_of(ids)
        text = ""
        for is_sentinel, group in itertools.groupby(ids, number_of_sentinel.__contains__):
            if is_sentinel:
                text += "".join(f"<extra_id_{number_of_sentinel[id]}>" for id in group)
            else:
                text += f" {text_of(list(group))} "
        return text.strip()


def padded(
    rows: Sequence[np.ndarray], num_rows: int, step: int = INPUT_STEP, filling: int = 0
) -> Int[np.ndarray, "B L"]:
    """Returns rows of ids, padded with `filling` to the longest and up to a multiple of `step`."""
    width = -(-max(1, *map(len, rows)) // step) * step
    padded_rows = np.full((num_rows, width), filling, np.int32)
    for row, ids in enumerate(rows):
        padded_rows[row, : len(ids)] = ids
    return padded_rows


def read_mask(rows: Sequence[np.ndarray], num_rows: int, step: int = INPUT_STEP) -> Int[np.ndarray, "B L"]:
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


class TimeIsOverError(Exception):
    """An answer took longer than its time; `num_tokens` is how many tokens it had by then, None if unknown."""

    def __init__(self, seconds: float, num_tokens: int | None = None):
        super().__init__(f"no answer within {seconds:g} seconds")
        self.seconds = seconds
        self.num_tokens = num_tokens


class Deadline:
    """The end of so many seconds, counted from its creation by `clock`.

    `watch` is given the ids that the first text has so far, [Q], each time that the clock is looked at.

    >>> deadline = Deadline(5.0, clock=iter([100.0, 102.0, 106.0]).__next__)
    >>> deadline.left()
    3.0
    >>> deadline.check()
    Traceback (most recent call last):
    limba.inference.generate.TimeIsOverError: no answer within 5 seconds
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        watch: Callable[[Int[np.ndarray, " Q"]], None] | None = None,
    ):
        self.seconds = seconds
        self.clock = clock
        self.watch = watch
        self._end = clock() + seconds

    def left(self) -> float:
        """Returns the seconds until the end, negative after it."""
        return self._end - self.clock()

    def check(self, num_tokens: int | None = None) -> None:
        """Raises TimeIsOverError after the end."""
        if self.left() <= 0:
            raise TimeIsOverError(self.seconds, num_tokens)


@functools.partial(jax.jit, static_argnames=("plan",))
def _begin(plan: Plan, params: PyTree, inputs: ProgramInputs) -> tuple[Float[Array, "B K D"] | None, search.State]:
    encoded = None
    if not plan.network.config.is_decoder_only:
        encoded = plan.network.encode(params, inputs.ids, inputs.is_read)
    _, cache, prompt, _ = searched(plan, params, inputs, encoded)
    return encoded, search.start(cache, prompt, plan.config)


@functools.partial(jax.jit, static_argnames=("plan",))
def _advance(
    plan: Plan,
    params: PyTree,
    inputs: ProgramInputs,
    encoded: Float[Array, "B K D"] | None,
    state: search.State,
    until: Int[Array, ""],
) -> tuple[search.State, Bool[Array, ""]]:
    # The compiler leaves out what only `_begin` needs, such as a language model's reading of its prompt.
    step, _, prompt, rules = searched(plan, params, inputs, encoded)
    state = search.advance(step, state, until, prompt.shape[1], rules)
    return state, search.is_over(state, plan.config)


def generate_in_parts(plan: Plan, params: PyTree, inputs: ProgramInputs, deadline: Deadline) -> search.Generated:
    """Returns what `generate.generate` returns; raises TimeIsOverError soon after the deadline.

    The clock is looked at after each TOKENS_PER_LOOK tokens, or TOKENS_PER_WATCHED_LOOK where somebody watches. The
    deadline does not interrupt compiling.
    """
    encoded, state = _begin(plan, params, inputs)
    prompt_length = inputs.ids.shape[1] if plan.network.config.is_decoder_only else 1
    num_more = TOKENS_PER_LOOK if deadline.watch is None else TOKENS_PER_WATCHED_LOOK
    num_written = 0
    is_over = False
    while not is_over:
        deadline.check(num_written)
        state, ended = _advance(plan, params, inputs, encoded, state, jnp.int32(num_written + num_more))
        is_over = bool(ended)
        num_written = int(state.position)
        if deadline.watch is not None:
            deadline.watch(fetched(search.first_text(state))[prompt_length : prompt_length + num_written])
    return search.result(state, prompt_length, plan.config)
