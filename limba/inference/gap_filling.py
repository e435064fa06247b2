"""The texts that a T5 would write in the gaps of a text, with their probabilities."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from limba.config import InputError
from limba.data.vocabulary.sentinels import sentinel_ids
from limba.data.vocabulary.special_ids import SpecialIds
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.inference import generate, limits
from limba.inference.gap_pieces import Fill, Pieces, pieces_of
from limba.inference.token_ids import SENTINEL
from limba.model import Network
from limba.sharding.mesh import batch_sharding, num_batch_groups
from limba.training.placement import place_batch

NUM_FILLS = 3  # shown for a gap
MOST_PIECES = 8  # of a fill
BEAMS = 8
TEXTS_AT_ONCE = 16
LENGTH_STEP = 8  # the decoder's inputs are padded to a multiple, so that few programs are compiled
GAP = re.compile(r"<extra_id_(\d+)>|<mask>|\[MASK\]|<\|mask\|>|_{3,}")  # the ways to write a gap

Beginnings = Sequence[Sequence[int]]  # of the decoder's input, all of one length
# Yields beginnings, is sent the logits after each, and returns the fills of each gap.
Search = Generator[Beginnings, Float[np.ndarray, "R V"], list[list[Fill]]]


def with_sentinels(text: str) -> str:
    """Returns a text with gaps as <extra_id_0>, <extra_id_1>, …, in order; `<mask>` and `___` are gaps too.

    Raises InputError for a text without a gap, and for numbers that are not in order.

    >>> with_sentinels("The module ___ a <mask>.")
    'The module <extra_id_0> a <extra_id_1>.'
    """
    shown = repr(text if len(text) < 60 else f"{text[:60]}…")
    num_gaps = 0
    for match in GAP.finditer(text):
        if match[1] and int(match[1]) != num_gaps:
            raise InputError(
                f"Gap {num_gaps + 1} of the text {shown} is {match[0]}; write <extra_id_{num_gaps}>, or ___."
            )
        num_gaps += 1
    if not num_gaps:
        raise InputError(f"The text {shown} has no gap; write <extra_id_0>, or ___, in place of a word.")
    numbers = itertools.count()
    return GAP.sub(lambda _: f"<extra_id_{next(numbers)}>", text)


class Filler(NamedTuple):
    """A trained encoder-decoder that fills gaps, TEXTS_AT_ONCE texts side by side."""

    network: Network
    params: PyTree
    mesh: Mesh
    vocabulary: Vocabulary
    special: SpecialIds

    def fill(
        self, masked: Sequence[str], ids: Sequence[np.ndarray], num: int, deadline: generate.Deadline | None = None
    ) -> list[list[list[Fill]]]:
        """Returns the fills of each text's gaps, see `fills`; `ids` are the texts as the network reads them.

        Raises TimeIsOverError soon after the deadline.
        """
        pieces = pieces_of(self.vocabulary, self.network.config.vocab_size, self.special)
        groups = num_batch_groups(self.mesh)
        num_rows = -(-min(TEXTS_AT_ONCE, max(1, len(ids))) // groups) * groups
        limits.check_fills(self.network.config, num_rows, max(map(len, ids), default=0), num, self.mesh)
        fills_of_texts: list[list[list[Fill]]] = [[] for _ in masked]
        for numbers in generate.batches_of_like_lengths([len(text_ids) for text_ids in ids], num_rows):
            rows = [ids[number] for number in numbers]
            inputs = generate.padded(rows, num_rows)
            is_read = None
            if self.special.is_published:
                is_read = generate.read_mask(rows, num_rows)
            logits_of = self._decoder(inputs, is_read, max(BEAMS, num))
            # The searches of a batch run side by side: each asks for the logits that it needs next, and one call of the
            # decoder answers all of them.
            searches = [fills(masked[number], pieces, num) for number in numbers]
            asked = {row: next(search) for row, search in enumerate(searches)}
            while asked:
                if deadline is not None:
                    deadline.check()
                for row, logits in logits_of(asked).items():
                    try:
                        asked[row] = searches[row].send(logits)
                    except StopIteration as ended:
                        fills_of_texts[numbers[row]] = ended.value
                        del asked[row]
        return fills_of_texts

    def _decoder(
        self, inputs: Int[np.ndarray, "B K"], is_read: Int[np.ndarray, "B K"] | None, num_beams: int
    ) -> Callable[[dict[int, Beginnings]], dict[int, Float[np.ndarray, "R V"]]]:
        """Returns a function from beginnings of some rows' targets to the logits after each; it encodes the rows."""
        sharding = batch_sharding(self.mesh)
        inputs_of_beams = {"encoder_input_tokens": np.repeat(inputs, num_beams, axis=0)}
        inputs_of_rows = {"inputs": inputs}
        if is_read is not None:
            inputs_of_beams["encoder_is_read"] = np.repeat(is_read, num_beams, axis=0)
            inputs_of_rows["is_read"] = is_read
        placed_inputs = place_batch(inputs_of_beams, sharding)
        encoded = _encoded(self.network, self.params, **place_batch(inputs_of_rows, sharding), num_beams=num_beams)

        def logits_of(asked: dict[int, Beginnings]) -> dict[int, Float[np.ndarray, "R V"]]:
            longest = max(len(beginnings[0]) for beginnings in asked.values())
            width = -(-longest // LENGTH_STEP) * LENGTH_STEP
            tokens = np.zeros((len(inputs) * num_beams, width), np.int32)
            is_real = np.zeros_like(tokens)
            last = np.zeros(len(tokens), np.int32)
            for row, beginnings in asked.items():
                count, length = np.shape(beginnings)
                beams = slice(row * num_beams, row * num_beams + count)
                tokens[beams, :length] = beginnings
                is_real[beams, :length] = 1
                last[beams] = length - 1
            features = {"decoder_input_tokens": tokens, "decoder_target_tokens": is_real, "last": last}
            batch = {**placed_inputs, **place_batch(features, sharding)}
            logits = generate.fetched(_next_logits(self.network, self.params, batch, encoded))
            return {row: logits[row * num_beams :][: len(beginnings)] for row, beginnings in asked.items()}

        return logits_of


@functools.partial(jax.jit, static_argnames=("network", "num_beams"))
def _encoded(
    network: Network,
    params: PyTree,
    inputs: Int[Array, "B K"],
    is_read: Int[Array, "B K"] | None = None,
    *,
    num_beams: int,
) -> Float[Array, "R K D"]:
    return jnp.repeat(network.encode(params, inputs, is_read), num_beams, axis=0)


@functools.partial(jax.jit, static_argnames=("network",))
def _next_logits(
    network: Network, params: PyTree, batch: dict[str, Array], encoded: Float[Array, "R K D"]
) -> Float[Array, "R V"]:
    """Returns the logits after the token `last` of each row; the head is computed for that one alone."""
    states = network.decode(params, batch, encoded)
    matrix, factor = network.head(params)
    last = jnp.take_along_axis(states, batch["last"][:, None, None], axis=1)[:, 0]
    return factor * jnp.dot(last, matrix, preferred_element_type=jnp.float32)


def fills(masked: str, pieces: Pieces, num: int = NUM_FILLS) -> Search:
    """Returns the `num` most likely fills of each gap of a text with <extra_id_0> and so on, best first.

    A generator: it yields some beginnings of the decoder's input, [start, <extra_id_0>, …], all of one length, and is
    sent the logits after each. A fill begins with a piece that is a word or a good part of one, so that it is neither
    empty nor a particle of one letter; where the gap follows a space, and pieces begin with one, the fill does so too.
    In a vocabulary of bytes it begins with a letter or digit. Each gap is searched with BEAMS beams, or `num`, of at
    most MOST_PIECES pieces, after the best fills of the gaps before it. The probability is the model's without these
    rules: of the fill's pieces and of any sentinel or end after them.
    """
    before = [pieces.start]
    fills_of_gaps: list[list[Fill]] = []
    for match in SENTINEL.finditer(masked):
        before.append(sentinel_ids(pieces.vocabulary, int(match[1]) + 1)[-1])
        first = _may_begin(masked[: match.start()], pieces)
        best = yield from _search(before, first, pieces, num)
        fills_of_gaps.append(best[:num])
        if best:
            before += best[0].ids
    return fills_of_gaps


def _may_begin(text_before: str, pieces: Pieces) -> Bool[np.ndarray, " V"]:
    """Returns which pieces may begin the fill of a gap after this text."""
    allowed = pieces.is_text & pieces.has_letter
    if not pieces.tell_spaces:
        return allowed
    follows_space = not text_before or text_before[-1].isspace()
    allowed = allowed & (pieces.has_space == follows_space)
    words = allowed & pieces.is_word
    return words if words.any() else allowed


def _search(
    before: Sequence[int], first: Bool[np.ndarray, " V"], pieces: Pieces, num: int
) -> Generator[Beginnings, Float[np.ndarray, "R V"], list[Fill]]:
    """Returns the fills of one gap, best first: a beam search whose beams also end at each length.

    `first` are the pieces that may begin a fill; `before` is the decoder's input up to the gap's sentinel.
    """
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]  # ids of a fill, and their log probability
    ended = dict[str, Fill]()  # by text: two rows of pieces may spell the same one
    for length in range(MOST_PIECES + 1):
        logits = np.asarray((yield [[*before, *ids] for ids, _ in beams]), np.float64)
        log_probabilities = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        if length:
            for (ids, score), row in zip(beams, log_probabilities, strict=True):
                fill = _ended(ids, score + float(np.logaddexp.reduce(row[pieces.ends])), pieces)
                if fill is None:
                    continue
                known = ended.get(fill.text)
                if fill.probability > (0.0 if known is None else known.probability):
                    ended[fill.text] = fill
        beams = _extended(beams, log_probabilities, pieces.is_text if length else first, max(BEAMS, num))
        # No longer fill can be likelier than the beam that it begins with.
        likely = sorted((fill.probability for fill in ended.values()), reverse=True)
        if not beams or (len(likely) >= num and np.exp(beams[0][1]) < likely[num - 1]):
            break
    return sorted(ended.values(), key=lambda fill: -fill.probability)


def _extended(
    beams: Sequence[tuple[tuple[int, ...], float]],
    log_probabilities: Float[np.ndarray, "R V"],
    allowed: Bool[np.ndarray, " V"],
    num_beams: int,
) -> list[tuple[tuple[int, ...], float]]:
    """Returns the likeliest beams with one more of the allowed pieces, best first."""
    scores = np.where(allowed, log_probabilities, -np.inf) + np.asarray([score for _, score in beams])[:, None]
    num_ids = scores.shape[1]
    count = min(num_beams, scores.size)
    # Only the candidates are sorted, not the whole vocabulary of each beam.
    least = np.partition(scores, -count, axis=None)[-count]
    candidates = np.flatnonzero(scores >= least)
    best = candidates[np.argsort(-scores.flat[candidates], kind="stable")][:count]
    extended = []
    for index in best.tolist():
        score = float(scores.flat[index])
        if np.isfinite(score):
            beam, piece = divmod(index, num_ids)
            extended.append(((*beams[beam][0], piece), score))
    return extended


def _ended(ids: tuple[int, ...], score: float, pieces: Pieces) -> Fill | None:
    """Returns the fill of some pieces; None where they end in half a letter, or have no letter or digit."""
    text = " ".join(pieces.vocabulary.decode(list(ids)).split())
    if "\ufffd" in text or not any(letter.isalnum() for letter in text):
        return None
    return Fill(text, float(np.exp(score)), ids)
