"""The words that a model would write in the gaps of a text, with their probabilities."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, PyTree

from limba.config import EvaluationConfig
from limba.data.vocabulary.load import PieceTable, Vocabulary, is_byte_piece, num_sentinels, piece_bytes, sentinel_ids
from limba.data.vocabulary.sentences import HAN, UNSPACED
from limba.data.vocabulary.sentences import hidden_words as hidden_words
from limba.data.vocabulary.sentences import sentences as sentences
from limba.inference.generate import EOS, SENTINEL, START, Gaps, Writer, Written, ids_of, prompt_ids
from limba.model import Network
from limba.sharding.mesh import num_batch_groups

if TYPE_CHECKING:
    from limba.inference.load import TrainedModel


NUM_FILLS = 3  # shown for a gap
MOST_PIECES = 8  # of a fill
BEAMS = 8

NextLogits = Callable[[Sequence[Sequence[int]]], Float[np.ndarray, "R V"]]


class Fill(NamedTuple):
    """A text for a gap; the probability that the model writes exactly this there, its end included; its ids."""

    text: str
    probability: float
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Pieces:
    """What the ids of a vocabulary may do in a gap; bool [V] each."""

    vocabulary: Vocabulary
    sentinels: Sequence[int]
    is_text: Bool[np.ndarray, " V"]  # neither a control nor a sentinel, nor a row without a piece
    has_letter: Bool[np.ndarray, " V"]  # or begins a letter of several bytes
    is_word: Bool[np.ndarray, " V"]  # is a word, or a good part of one: `is_word`
    has_space: Bool[np.ndarray, " V"]  # begins with a space
    ends: Bool[np.ndarray, " V"]  # sentinels and the end of sequence


def pieces_of(vocabulary: Vocabulary, num_rows: int) -> Pieces:
    """Returns the table for a vocabulary whose embedding has `num_rows` rows."""
    spelled = piece_bytes(vocabulary, num_rows)
    single = np.zeros(num_rows, bool)
    single[: vocabulary.vocab_size] = is_byte_piece(vocabulary)[:num_rows]
    texts = [each.decode("utf-8", "ignore") for each in spelled]
    letters = [any(map(str.isalnum, text)) or each[:1] >= b"\xc2" for text, each in zip(texts, spelled, strict=True)]
    sentinels = sentinel_ids(vocabulary, num_sentinels(vocabulary))
    ends = np.zeros(num_rows, bool)
    ends[[*sentinels, int(vocabulary.eos_id or EOS)]] = True
    return Pieces(
        vocabulary=vocabulary,
        sentinels=sentinels,
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
    return (
        letters > 1
        or re.search(HAN, text) is not None
        or (letters == 1 and not UNSPACED.search(text) and text[0] == " ")
    )


def fills(masked: str, next_logits: NextLogits, pieces: Pieces, num: int = NUM_FILLS) -> list[list[Fill]]:
    """Returns the `num` most likely fills of each gap of a text with <extra_id_0> and so on, best first.

    `next_logits` gives the logits after each of some beginnings of the decoder's input, [START, <extra_id_0>, …], all
    of one length. A fill begins with a piece that is a word or a good part of one, so that it is neither empty nor a
    particle of one letter; where the gap follows a space, and pieces begin with one, the fill does so too. In a
    vocabulary of bytes it begins with a letter or digit. Each gap is searched with BEAMS beams of at most
    MOST_PIECES pieces, after the best fills of the gaps before it. The probability is that of the model without these
    rules: of its pieces and of any sentinel or end after them.
    """
    before, found = [START], list[list[Fill]]()
    for match in SENTINEL.finditer(masked):
        before.append(pieces.sentinels[int(match[1])])
        follows_space = not masked[: match.start()] or masked[match.start() - 1].isspace()
        first = pieces.is_text & pieces.has_letter
        if pieces.has_space.sum() > 1:  # not a vocabulary of bytes, where only one id has a space
            first &= pieces.has_space == follows_space
            first = first & pieces.is_word if (first & pieces.is_word).any() else first
        best = _search(before, first, next_logits, pieces)[:num]
        found.append(best)
        before += best[0].ids if best else ()
    return found


def _search(
    before: Sequence[int], first: Bool[np.ndarray, " V"], next_logits: NextLogits, pieces: Pieces
) -> list[Fill]:
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended = dict[str, Fill]()  # two rows of pieces may spell one text
    for length in range(MOST_PIECES + 1):
        rows = _log_softmax(next_logits([[*before, *ids] for ids, _ in beams]))
        if length:
            for (ids, score), row in zip(beams, rows, strict=True):
                fill = _ended(ids, score + float(np.logaddexp.reduce(row[pieces.ends])), pieces)
                if fill and fill.probability > ended.get(fill.text, fill._replace(probability=0.0)).probability:
                    ended[fill.text] = fill
        allowed = pieces.is_text if length else first
        scores = np.where(allowed, rows, -np.inf) + np.asarray([score for _, score in beams])[:, None]
        best = np.argsort(-scores, axis=None, kind="stable")[:BEAMS]
        beams = [
            ((*beams[place // scores.shape[1]][0], int(place % scores.shape[1])), float(scores.flat[place]))
            for place in best.tolist()
            if np.isfinite(scores.flat[place])
        ]
        likely = sorted((fill.probability for fill in ended.values()), reverse=True)
        if not beams or (len(likely) >= NUM_FILLS and np.exp(beams[0][1]) < likely[NUM_FILLS - 1]):
            break
    return sorted(ended.values(), key=lambda fill: -fill.probability)


def _ended(ids: tuple[int, ...], score: float, pieces: Pieces) -> Fill | None:
    """Returns the fill of some pieces; None for half a letter, or where no letter is left."""
    text = " ".join(pieces.vocabulary.decode(list(ids)).split())
    is_whole = "\ufffd" not in text and any(map(str.isalnum, text))
    return Fill(text, float(np.exp(score)), ids) if is_whole else None


def _log_softmax(logits: Float[np.ndarray, "R V"]) -> Float[np.ndarray, "R V"]:
    rows = np.asarray(logits, np.float64)
    return rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True)


def fills_of(trained: TrainedModel, masked: str, num: int = NUM_FILLS) -> list[list[Fill]]:
    """Returns the fills of a text's gaps by a trained encoder-decoder; see `fills`."""
    ids, end = trained.tokenize(masked), int(trained.vocabulary.eos_id or EOS)

    def next_logits(beginnings: Sequence[Sequence[int]]) -> Float[np.ndarray, "R V"]:
        pairs = [(ids, np.asarray([*beginning[1:], end], np.int32)) for beginning in beginnings]
        rows = trained.logits_of_ids(pairs, trained.rows(BEAMS))  # one size, so that one program is compiled
        return np.stack([row[-1] for row in rows])

    return fills(masked, next_logits, pieces_of(trained.vocabulary, trained.network.config.vocab_size), num)


def sampler(
    network: Network, mesh: Mesh, vocabulary: Vocabulary, config: EvaluationConfig, is_prefix: bool = False
) -> Callable[[PyTree], dict[str, list[str]]] | None:
    """Returns a function from the parameters to each prompt's texts; None without prompts.

    A decoder-only model continues a prompt, with `is_prefix` read as the inputs of its rows; a T5 fills its gaps
    (<extra_id_0> and so on), whose texts are then in [brackets]. A fill begins with a word or a good part of one
    (`gaps.is_word`), so that no gap is left empty. Raises InputError for a prompt that the model cannot take.
    """
    prompts, continues = config.prompts, network.config.is_decoder_only
    if not prompts:
        return None
    if network.config.is_encoder:
        from limba.inference.masks import mask_sampler

        return mask_sampler(network, mesh, vocabulary, prompts)
    groups = num_batch_groups(mesh)
    sampling = config.sampling if continues else dataclasses.replace(config.sampling, ban_sentinels=False)
    rows = -(-len(prompts) // groups) * groups
    writer = Writer(network, mesh, vocabulary, sampling, rows, is_prefix, gaps=_gaps(network, vocabulary))
    ids = prompt_ids if continues else ids_of
    inputs = [ids(prompt, vocabulary) for prompt in prompts]
    writer.check(inputs)
    table = PieceTable(vocabulary)

    def text_of(read: np.ndarray, written: Written) -> str:
        return written.text if continues else table.filled(read.tolist(), written.ids.tolist())

    def texts(params: PyTree) -> dict[str, list[str]]:
        found = zip(prompts, inputs, writer.write_all(params, inputs), strict=True)
        return {prompt: [text_of(read, each) for each in several] for prompt, read, several in found}

    return texts


def _gaps(network: Network, vocabulary: Vocabulary) -> Gaps | None:
    """Returns which ids begin a T5's fills; None for a language model, and where no piece could."""
    if network.config.is_decoder_only:
        return None
    pieces = pieces_of(vocabulary, network.config.vocab_size)
    is_sentinel, words = np.zeros(network.config.vocab_size, bool), pieces.is_text & pieces.is_word
    may_begin = words if words.any() else pieces.is_text & pieces.has_letter  # as in a vocabulary of bytes
    is_sentinel[[place for place in pieces.sentinels if place < len(is_sentinel)]] = True
    return Gaps(is_sentinel, may_begin) if may_begin.any() else None
