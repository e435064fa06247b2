"""The words that a model would write in the gaps of a text, with their probabilities."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PyTree

from limba.config import InputError
from limba.data.stream.placement import place_batch
from limba.data.vocabulary import load
from limba.data.vocabulary.around_gaps import encode_parts
from limba.data.vocabulary.load import Vocabulary
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.special_ids import SpecialIds, of_run
from limba.data.vocabulary.text_sample import HAN, UNSPACED
from limba.data.vocabulary.text_sample import hidden_words as hidden_words
from limba.data.vocabulary.text_sample import sentences as sentences
from limba.inference import generate, limits
from limba.inference.texts import whole_letters
from limba.model import Network
from limba.sharding.mesh import batch_sharding, num_batch_groups

NUM_FILLS = 3  # shown for a gap
MOST_PIECES = 8  # of a fill
BEAMS = 8
TEXTS_AT_ONCE = 16
LENGTH_STEP = 8  # beginnings are padded to a multiple, so that few programs are compiled
GAP = re.compile(r"<extra_id_(\d+)>|<mask>|\[MASK\]|<\|mask\|>|_{3,}")
MASK = re.compile(r"<mask>|\[MASK\]|<\|mask\|>|<extra_id_\d+>|_{3,}")  # how a text may write it
PLACES_STEP = 8  # masks of a row are padded to a multiple, so that few programs are compiled

Beginnings = Sequence[Sequence[int]]  # of the decoder's input, all of one length


class Fill(NamedTuple):
    """A text for a gap; the probability that the model writes exactly this there, its end included; its ids."""

    text: str
    probability: float
    ids: tuple[int, ...]


Search = Generator[Beginnings, Float[np.ndarray, "R V"], list[list[Fill]]]


@dataclass(frozen=True)
class Pieces:
    """What the ids of a vocabulary may do in a gap; bool [V] each."""

    vocabulary: Vocabulary
    sentinels: Sequence[int]
    start: int  # of the decoder's input
    is_text: Bool[np.ndarray, " V"]  # neither a control nor a sentinel, nor a row without a piece
    has_letter: Bool[np.ndarray, " V"]  # or begins a letter of several bytes
    is_word: Bool[np.ndarray, " V"]  # is a word, or a good part of one: `is_word`
    has_space: Bool[np.ndarray, " V"]  # begins with a space
    ends: Bool[np.ndarray, " V"]  # sentinels and the end of sequence


def pieces_of(vocabulary: Vocabulary, num_rows: int, special: SpecialIds) -> Pieces:
    """Returns the table for a vocabulary whose embedding has `num_rows` rows."""
    spelled = load.piece_texts(vocabulary, num_rows)
    single = np.zeros(num_rows, bool)
    single[: vocabulary.vocab_size] = load.is_byte_piece(vocabulary)[:num_rows]
    texts = [each.decode("utf-8", "ignore") for each in spelled]
    letters = [any(map(str.isalnum, text)) or each[:1] >= b"\xc2" for text, each in zip(texts, spelled, strict=True)]
    sentinels = load.sentinel_ids(vocabulary, load.num_sentinels(vocabulary))
    ends = np.zeros(num_rows, bool)
    ends[[number for number in (*sentinels, *special.ends) if number < num_rows]] = True
    return Pieces(
        vocabulary=vocabulary,
        sentinels=sentinels,
        start=special.generation_start,
        is_text=np.asarray([bool(each) and "\n" not in text for each, text in zip(spelled, texts, strict=True)]),
        has_letter=np.asarray(letters) & ~single,
        is_word=np.asarray([is_word(text) for text in texts]) & ~single,
        has_space=np.asarray([each[:1] == b" " for each in spelled]),
        ends=ends,
    )


def is_word(text: str) -> bool:
    """Returns whether a piece is a word or a good part of one: two letters or a kanji, or one letter after a space.

    >>> [is_word(text) for text in ("the", " a", "する", "型", "s", "の", " の", " 1", ",")]
    [True, True, True, True, False, False, False, False, False]
    """
    letters = sum(map(str.isalpha, text))
    is_alone = letters == 1 and not UNSPACED.search(text) and text[0] == " "
    return letters > 1 or is_alone or re.search(HAN, text) is not None


def first_pieces(network: Network, vocabulary: Vocabulary) -> generate.Gaps | None:
    """Returns which ids may begin a T5's fills; None for a language model, and where no piece could."""
    if network.config.is_decoder_only:
        return None
    pieces = pieces_of(vocabulary, network.config.vocab_size, of_run(vocabulary, network.config))
    is_sentinel, words = np.zeros(network.config.vocab_size, bool), pieces.is_text & pieces.is_word
    may_begin = words if words.any() else pieces.is_text & pieces.has_letter  # as in a vocabulary of bytes
    is_sentinel[[place for place in pieces.sentinels if place < len(is_sentinel)]] = True
    return generate.Gaps(is_sentinel, may_begin) if may_begin.any() else None


def with_sentinels(text: str) -> str:
    """Returns a text with gaps as <extra_id_0>, <extra_id_1>, …, in order; `<mask>` and `___` are gaps too.

    Raises InputError for a text without a gap, and for numbers that are not in order.

    >>> with_sentinels("The module ___ a <mask>.")
    'The module <extra_id_0> a <extra_id_1>.'
    """
    shown, place = repr(text if len(text) < 60 else f"{text[:60]}…"), 0
    for place, match in enumerate(GAP.finditer(text), 1):
        if match[1] and int(match[1]) != place - 1:
            raise InputError(f"Gap {place} of the text {shown} is {match[0]}; write <extra_id_{place - 1}>, or ___.")
    if not place:
        raise InputError(f"The text {shown} has no gap; write <extra_id_0>, or ___, in the place of a word.")
    numbers = itertools.count()
    return GAP.sub(lambda _: f"<extra_id_{next(numbers)}>", text)


def fills(masked: str, pieces: Pieces, num: int = NUM_FILLS) -> Search:
    """Returns the `num` most likely fills of each gap of a text with <extra_id_0> and so on, best first.

    A generator: it yields some beginnings of the decoder's input, [start, <extra_id_0>, …], all of one length, and is
    sent the logits after each. A fill begins with a piece that is a word or a good part of one, so that it is neither
    empty nor a particle of one letter; where the gap follows a space, and pieces begin with one, the fill does so too.
    In a vocabulary of bytes it begins with a letter or digit. Each gap is searched with BEAMS beams, or `num`, of at
    most MOST_PIECES pieces, after the best fills of the gaps before it. The probability is that of the model without
    these rules: of its pieces and of any sentinel or end after them.
    """
    before, found = [pieces.start], list[list[Fill]]()
    for match in generate.SENTINEL.finditer(masked):
        before.append(load.sentinel_ids(pieces.vocabulary, int(match[1]) + 1)[-1])
        follows_space = not masked[: match.start()] or masked[match.start() - 1].isspace()
        first = pieces.is_text & pieces.has_letter
        if pieces.has_space.sum() > 1:  # not a vocabulary of bytes, where only one id has a space
            first &= pieces.has_space == follows_space
            first = first & pieces.is_word if (first & pieces.is_word).any() else first
        best = (yield from _search(before, first, pieces, num))[:num]
        found.append(best)
        before += best[0].ids if best else ()
    return found


def _search(
    before: Sequence[int], first: Bool[np.ndarray, " V"], pieces: Pieces, num: int
) -> Generator[Beginnings, Float[np.ndarray, "R V"], list[Fill]]:
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended = dict[str, Fill]()  # two rows of pieces may spell one text
    for length in range(MOST_PIECES + 1):
        logits = np.asarray((yield [[*before, *ids] for ids, _ in beams]), np.float64)
        rows = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        if length:
            for (ids, score), row in zip(beams, rows, strict=True):
                fill = _ended(ids, score + float(np.logaddexp.reduce(row[pieces.ends])), pieces)
                if fill and fill.probability > ended.get(fill.text, fill._replace(probability=0.0)).probability:
                    ended[fill.text] = fill
        allowed = pieces.is_text if length else first
        scores = np.where(allowed, rows, -np.inf) + np.asarray([score for _, score in beams])[:, None]
        count = min(max(BEAMS, num), scores.size)
        kept = np.flatnonzero(scores >= np.partition(scores, -count, axis=None)[-count])
        best = kept[np.argsort(-scores.flat[kept], kind="stable")][:count]
        beams = [
            ((*beams[place // scores.shape[1]][0], int(place % scores.shape[1])), float(scores.flat[place]))
            for place in best.tolist()
            if np.isfinite(scores.flat[place])
        ]
        likely = sorted((fill.probability for fill in ended.values()), reverse=True)
        if not beams or (len(likely) >= num and np.exp(beams[0][1]) < likely[num - 1]):
            break
    return sorted(ended.values(), key=lambda fill: -fill.probability)


def _ended(ids: tuple[int, ...], score: float, pieces: Pieces) -> Fill | None:
    """Returns the fill of some pieces; None for half a letter, or where no letter is left."""
    text = " ".join(pieces.vocabulary.decode(list(ids)).split())
    is_whole = "\ufffd" not in text and any(map(str.isalnum, text))
    return Fill(text, float(np.exp(score)), ids) if is_whole else None


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
        found: list[list[list[Fill]]] = [[] for _ in masked]
        num_rows = -(-min(TEXTS_AT_ONCE, max(1, len(ids))) // groups) * groups
        limits.check_fills(self.network.config, num_rows, max(map(len, ids), default=0), num, self.mesh)
        for numbers in generate.batches_of_like_lengths([len(each) for each in ids], num_rows):
            rows = [ids[i] for i in numbers]
            inputs, is_read = generate.padded(rows, num_rows), None
            if self.special.is_published:
                is_read = generate.read_places(rows, num_rows)
            logits_of = self._decoder(inputs, is_read, max(BEAMS, num))
            searches = [fills(masked[i], pieces, num) for i in numbers]
            asked = {place: next(search) for place, search in enumerate(searches)}
            while asked:
                if deadline is not None:
                    deadline.check()
                for place, logits in logits_of(asked).items():
                    try:
                        asked[place] = searches[place].send(logits)
                    except StopIteration as ended:
                        found[numbers[place]] = ended.value
                        del asked[place]
        return found

    def _decoder(
        self, inputs: Int[np.ndarray, "B K"], is_read: Int[np.ndarray, "B K"] | None, num_beams: int
    ) -> Callable[[dict[int, Beginnings]], dict[int, Float[np.ndarray, "R V"]]]:
        """Returns a function from beginnings of some rows' targets to the logits after each; it encodes the rows."""
        rows = batch_sharding(self.mesh)
        texts = {"encoder_input_tokens": np.repeat(inputs, num_beams, axis=0)}
        given = {"inputs": inputs}
        if is_read is not None:
            texts["encoder_is_read"] = np.repeat(is_read, num_beams, axis=0)
            given["is_read"] = is_read
        texts = place_batch(texts, rows)
        encoded = _encoded(self.network, self.params, **place_batch(given, rows), num_beams=num_beams)

        def logits_of(asked: dict[int, Beginnings]) -> dict[int, Float[np.ndarray, "R V"]]:
            longest = max(len(each[0]) for each in asked.values())
            tokens = np.zeros((len(inputs) * num_beams, -(-longest // LENGTH_STEP) * LENGTH_STEP), np.int32)
            is_real, last = np.zeros_like(tokens), np.zeros(len(tokens), np.int32)
            for place, beginnings in asked.items():
                start, (count, length) = place * num_beams, np.shape(beginnings)
                tokens[start : start + count, :length], is_real[start : start + count, :length] = beginnings, 1
                last[start : start + count] = length - 1
            batch = place_batch({"decoder_input_tokens": tokens, "decoder_target_tokens": is_real, "last": last}, rows)
            found = generate.fetched(_next_logits(self.network, self.params, {**texts, **batch}, encoded))
            return {place: found[place * num_beams :][: len(beginnings)] for place, beginnings in asked.items()}

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
    states = network.decode(params, batch, encoded)
    matrix, factor = network.head(params)
    last = jnp.take_along_axis(states, batch["last"][:, None, None], axis=1)[:, 0]
    return factor * jnp.dot(last, matrix, preferred_element_type=jnp.float32)


def masked_ids(
    text: str, vocabulary: Vocabulary, special: SpecialIds, length: int | None = None
) -> Int[np.ndarray, " L"]:
    """Returns a text's ids as an encoder reads them, from <cls>, if there is one, to the end; at most `length`.

    <mask>, a <extra_id_0> and ___ are each one mask. What follows one without a space is its word's continuation. A
    folder for transformers reads only its own mask as one, as it does there.
    """
    if isinstance(vocabulary, PublishedVocabulary):
        return np.asarray(special.framed(vocabulary.encode(text), length), np.int32)
    mask = _mask_of(vocabulary, special)
    first, *others = encode_parts(vocabulary, MASK.split(text))
    ids = list(first)
    for part in others:
        ids.append(mask)
        ids += part
    return np.asarray(special.framed(ids, length), np.int32)


def _mask_of(vocabulary: Vocabulary, special: SpecialIds) -> int:
    """Returns the mask; InputError for a model that has none."""
    if special.mask is not None:
        return special.mask
    if isinstance(vocabulary, PublishedVocabulary):
        raise InputError(
            f"The tokenizer {vocabulary.path} has no mask (mask_token), so no words can be hidden; call `encode`"
            " for vectors."
        )
    return load.mask_id(vocabulary)


def _with_own_masks(texts: Sequence[str], vocabulary: Vocabulary) -> tuple[Sequence[str], re.Pattern[str]]:
    """Returns the texts, and what a mask is in them: that of a folder for transformers is written as it is named there.

    Where a text has that name, <mask> and the other ways to write a mask are plain text in it, as in transformers.
    """
    name = vocabulary.mask_name if isinstance(vocabulary, PublishedVocabulary) else None
    if name is None:
        return texts, MASK
    own = str(name)
    return [text if own in text else MASK.sub(lambda _: own, text) for text in texts], re.compile(re.escape(own))


def fills_of_masks(
    network: Network,
    params: PyTree,
    mesh: Mesh,
    vocabulary: Vocabulary,
    special: SpecialIds,
    texts: Sequence[str],
    top: int = 5,
    deadline: generate.Deadline | None = None,
) -> list[list[list[Fill]]]:
    """Returns the `top` likeliest pieces of each mask of each text, best first, with the encoder's probabilities.

    A fill is one piece with a letter or digit; after a space it begins with one, else it continues its word. Each mask
    is filled as if the others stayed. Raises InputError for a text without a mask, TimeIsOverError after the deadline.
    """
    pieces, mask = pieces_of(vocabulary, network.config.vocab_size, special), _mask_of(vocabulary, special)
    texts, pattern = _with_own_masks(texts, vocabulary)
    ids = [masked_ids(text, vocabulary, special) for text in texts]
    places = [np.flatnonzero(each == mask).astype(np.int32) for each in ids]
    for text, found in zip(texts, places, strict=True):
        if not len(found):
            raise InputError(f"The text {text!r} has no mask to fill; write <mask> in the place of a word.")
    if (longest := max(map(len, ids), default=0)) > network.config.max_length:
        raise InputError(
            f"A text has {longest:,} tokens, and the encoder reads {network.config.max_length:,}; give a shorter one."
        )
    groups = num_batch_groups(mesh)
    num_rows = -(-min(len(texts), 32) // groups) * groups
    answers: list[list[list[Fill]]] = [[] for _ in texts]
    for numbers in generate.batches_of_like_lengths([len(each) for each in ids], num_rows):
        if deadline is not None:
            deadline.check()
        tokens = generate.padded([ids[number] for number in numbers], num_rows)
        is_read = generate.read_places([ids[number] for number in numbers], num_rows)
        width = -(-max(len(places[number]) for number in numbers) // PLACES_STEP) * PLACES_STEP
        at = np.zeros((num_rows, width), np.int32)
        for row, number in enumerate(numbers):
            at[row, : len(places[number])] = places[number]
        placed = place_batch({"tokens": tokens, "is_read": is_read, "at": at}, batch_sharding(mesh))
        rows = generate.fetched(_likelihoods(network, params, **placed))
        for row, number in enumerate(numbers):
            text = texts[number]
            for match, likely in zip(pattern.finditer(text), rows[row], strict=False):
                allowed = pieces.is_text & pieces.has_letter
                if pieces.has_space.sum() > 1:  # not a vocabulary of bytes, where only one id has a space
                    follows_space = match.start() == 0 or text[match.start() - 1].isspace()
                    allowed = allowed & (pieces.has_space == follows_space)
                best = np.argsort(-np.where(allowed, likely, -1.0), kind="stable")[:top]
                chosen = [each for each in best.tolist() if allowed[each]]
                words = (vocabulary.decode([each]).strip() for each in chosen)
                answers[number].append(
                    [Fill(word, float(likely[i]), (i,)) for word, i in zip(words, chosen, strict=True)]
                )
    return answers


@functools.partial(jax.jit, static_argnames=("network",))
def _likelihoods(
    network: Network, params: PyTree, tokens: Int[Array, "B L"], is_read: Int[Array, "B L"], at: Int[Array, "B P"]
) -> Float[Array, "B P V"]:
    batch = {"decoder_input_tokens": tokens, "decoder_target_tokens": is_read, "decoder_predicted_positions": at}
    return jax.nn.softmax(network.apply(params, batch).astype(jnp.float32), axis=-1)


def pseudo_log_likelihoods(
    network: Network,
    params: PyTree,
    mesh: Mesh,
    vocabulary: Vocabulary,
    special: SpecialIds,
    pairs: Sequence[tuple[str, str]],
    num_rows: int,
) -> Float[np.ndarray, " N"]:
    """Returns the pseudo log likelihood of each target, which follows its inputs; they may be empty.

    PLL-word-l2r (Kauf & Ivanova 2023, arXiv:2305.10588): the sum over the target's tokens of ln p(token | the text in
    which this token and the later ones of its word are masks). Begin and end are not scored.
    """
    mask, encode = _mask_of(vocabulary, special), load.encoder(vocabulary)
    begins = begins_word([*load.piece_texts(vocabulary, network.config.vocab_size)])
    texts, hidden = list[np.ndarray](), list[tuple[int, int, int]]()  # a text's number; the first and the last + 1
    for number, pair in enumerate(pairs):
        read, target = (np.asarray(each, np.int32) for each in encode([whole_letters(text).encode() for text in pair]))
        size = len(read) + len(target)
        ids = np.asarray(special.framed([*read.tolist(), *target.tolist()]), np.int32)
        begin = len(special.before)
        texts.append(ids)
        edges = np.flatnonzero(np.append(begins[ids[: begin + size]], True))
        for place in range(begin + len(read), begin + size):
            hidden.append((number, place, int(edges[np.searchsorted(edges, place, side="right")])))
    found = np.zeros(len(pairs), np.float64)
    for numbers in generate.batches_of_like_lengths([len(texts[number]) for number, _, _ in hidden], num_rows):
        rows = [hidden[number] for number in numbers]
        targets = generate.padded([texts[number] for number, _, _ in rows], num_rows)
        is_read = generate.read_places([texts[number] for number, _, _ in rows], num_rows)
        inputs, weights, places = targets.copy(), np.zeros_like(targets), np.zeros((num_rows, 1), np.int32)
        for row, (_, place, end) in enumerate(rows):
            inputs[row, place:end], weights[row, place], places[row] = mask, 1, place
        batch = {
            "decoder_input_tokens": inputs,
            "decoder_target_tokens": is_read,  # says only which places are text
            "scored_tokens": targets,
            "decoder_loss_weights": weights,
            "decoder_predicted_positions": places,
        }
        placed = place_batch(batch, batch_sharding(mesh))
        values = generate.fetched(generate.row_log_likelihoods(network, params, placed))
        np.add.at(found, [number for number, _, _ in rows], values[: len(rows)])
    return found.astype(np.float32)


def begins_word(pieces: Sequence[bytes]) -> Bool[np.ndarray, " V"]:
    """Returns which pieces begin a word: those that a space begins, or a letter of a script without spaces.

    >>> begins_word([" the".encode(), "re".encode(), "東京".encode()]).tolist()
    [True, False, True]
    """
    texts = [each.decode("utf-8", "ignore") for each in pieces]
    return np.array([text[:1] == " " or UNSPACED.match(text) is not None for text in texts])


def mask_sampler(
    network: Network, mesh: Mesh, vocabulary: Vocabulary, prompts: Sequence[str]
) -> Callable[[PyTree], dict[str, list[str]]]:
    """Returns a function from the parameters to each prompt's text, its masks filled with the likeliest [pieces]."""

    special = of_run(vocabulary, network.config)

    def texts(params: PyTree) -> dict[str, list[str]]:
        found = {}
        likeliest = fills_of_masks(network, params, mesh, vocabulary, special, prompts, 1)
        for prompt, fills in zip(prompts, likeliest, strict=True):
            best = iter([f"[{fill[0].text}]" if fill else "[]" for fill in fills])
            found[prompt] = [MASK.sub(lambda _, best=best: next(best), prompt)]
        return found

    return texts
