"""Ids with a role in a row: the sentinels <extra_id_0>, <extra_id_1>, …, the mask, and what a document begins with."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Sequence

from limba.config import InputError
from limba.data.vocabulary.addresses import address_of
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.shifted import StreamVocabulary
from limba.data.vocabulary.tokenizers import BEGINS, MASKS, SENTINEL, SPACE, TokenizersVocabulary
from limba.data.vocabulary.vocabularies import SPECIALS, ByteVocabulary, SentencePieceVocabulary, Vocabulary

logger = logging.getLogger(__name__)

BYTE_SENTINELS = 11  # of bytes without extra ids: 0xFF to 0xF5 are in no UTF-8; 0xF4 begins letters from U+100000 on
MOST_BYTE_SENTINELS = 128  # 0xFF to 0x80; the other bytes are ASCII


def sentinel_table(vocabulary: Vocabulary) -> list[int]:
    """Returns the ids of <extra_id_0>, <extra_id_1>, …, up to the first that is missing, wherever they are.

    T5's are the last ids and count down: <extra_id_0> is the very last. Among bytes without extra ids they are the ones
    that are in no text: 258, 257, …, 248, as T5X trains ByT5.

    >>> sentinel_table(ByteVocabulary(extra_ids=2)), len(sentinel_table(ByteVocabulary()))
    ([260, 259], 11)
    """
    if isinstance(vocabulary, StreamVocabulary):
        return [number + vocabulary.offset for number in sentinel_table(vocabulary.published)]
    last = vocabulary.vocab_size - 1
    if has_byte_sentinels(vocabulary):
        return [last - number for number in range(BYTE_SENTINELS)]
    if not isinstance(vocabulary, SentencePieceVocabulary | TokenizersVocabulary):
        return [last - number for number in range(vocabulary.extra_ids)]
    counted_down = list[int]()
    for number in range(last, -1, -1):
        match = SENTINEL.fullmatch(piece_name(vocabulary, number))
        if match is None or int(match[1]) != len(counted_down):
            break
        counted_down.append(number)
    return counted_down or list(_sentinels_by_name(vocabulary))


def _sentinels_by_name(vocabulary: Vocabulary) -> Iterator[int]:
    """Yields the ids of <extra_id_0>, <extra_id_1>, …, by their names, up to the first that is not there."""
    for number in itertools.count():
        name = f"<extra_id_{number}>"
        sentinel = id_of_piece(vocabulary, name)
        if sentinel is None:
            sentinel = id_of_piece(vocabulary, SPACE + name)
        if sentinel is None:
            return
        yield sentinel


def num_sentinels(vocabulary: Vocabulary) -> int:
    """Returns the number of sentinels; see `sentinel_table`.

    >>> num_sentinels(ByteVocabulary()), num_sentinels(ByteVocabulary(extra_ids=125))
    (11, 125)
    """
    return len(sentinel_table(vocabulary))


def are_sentinels_last(vocabulary: Vocabulary) -> bool:
    """Returns whether the sentinels are the last ids in T5's order."""
    sentinels = sentinel_table(vocabulary)
    return sentinels == [vocabulary.vocab_size - 1 - number for number in range(len(sentinels))]


def byte_extra_ids(vocabulary: object) -> int | None:
    """Returns the extra ids of a vocabulary of bytes; None for other vocabularies."""
    return vocabulary.extra_ids if isinstance(vocabulary, ByteVocabulary) else None


def has_byte_sentinels(vocabulary: object) -> bool:
    """Returns whether the sentinels are ids of bytes, as in the published ByT5 and in seqio's ByteVocabulary()."""
    return byte_extra_ids(vocabulary) == 0


@functools.cache
def warn_of_byte_sentinels(
    count: int,
    what: str,
    advice: str = "take a longer mean span (ByT5: 20), or, from scratch, DataConfig.extra_ids 125",
) -> None:
    """Logs once that an example with `count` sentinels, in a vocabulary of bytes without extra ids, needs real bytes.

    Nothing is logged for up to BYTE_SENTINELS, whose bytes are in no text.
    """
    if count > BYTE_SENTINELS:
        logger.warning(
            "%s has %d sentinels in an example, and only %d bytes are in no text: the ids from %d down to %d are ids of"
            " real text too; %s.",
            what, count, BYTE_SENTINELS, 258 - BYTE_SENTINELS, 259 - count, advice,
        )  # fmt: skip


def decoded(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """Returns the text of ids, in which sentinels are <extra_id_0> and so on; seqio's bytes would leave them out.

    >>> decoded(ByteVocabulary(), [258, 100, 257])
    '<extra_id_0>a<extra_id_1>'
    """
    if not isinstance(vocabulary, ByteVocabulary):
        return vocabulary.decode(ids)
    last = vocabulary.vocab_size - 1
    last_of_text = last - num_sentinels(vocabulary)
    text = ""
    for is_text, group in itertools.groupby(ids, lambda number: number <= last_of_text):
        if is_text:
            text += vocabulary.decode(list(group))
        else:
            text += "".join(f"<extra_id_{last - number}>" for number in group)
    return text


def sentinel_ids(vocabulary: Vocabulary, count: int) -> list[int]:
    """Returns the ids of <extra_id_0>, <extra_id_1>, …; InputError if there are fewer than `count`."""
    table = sentinel_table(vocabulary)
    available = len(table)
    if has_byte_sentinels(vocabulary):
        warn_of_byte_sentinels(count, "A text", "give shorter texts")
        available = MOST_BYTE_SENTINELS
        table = [vocabulary.vocab_size - 1 - number for number in range(available)]
    if count > available:
        raise InputError(
            f"A text holds <extra_id_{count - 1}>, and the vocabulary has {available} sentinels; remove it, or set"
            " DataConfig.extra_ids higher."
        )
    return table[:count]


def mask_id(vocabulary: Vocabulary) -> int:
    """Returns the id that stands for a hidden token: the piece <mask>, [MASK] or <|mask|>, else <extra_id_0>.

    Raises InputError for a vocabulary that has neither.

    >>> mask_id(ByteVocabulary(extra_ids=1))
    259
    """
    mask = known_mask_id(vocabulary)
    if mask is not None:
        return mask
    if isinstance(vocabulary, StreamVocabulary):
        raise InputError(
            f"The vocabulary {vocabulary.address} names no mask (mask_token) among its"
            f" {vocabulary.published.vocab_size:,} ids to hide tokens with; give a model that has one."
        )
    if isinstance(vocabulary, TokenizersVocabulary):
        raise InputError(
            f"The vocabulary {address_of(vocabulary)} has no <mask> and no <extra_id_0> to hide tokens with; add <mask>"
            " to the file as a special token."
        )
    raise InputError(
        f"The vocabulary {address_of(vocabulary) or repr('byte')} has no <mask> and no <extra_id_0> to hide tokens"
        " with; set DataConfig.extra_ids to 1.",
        fix=("DataConfig.extra_ids", 1),
    )


def known_mask_id(vocabulary: Vocabulary) -> int | None:
    """Returns `mask_id`; None for a vocabulary that has none."""
    if isinstance(vocabulary, StreamVocabulary):
        return vocabulary.mask_id
    if isinstance(vocabulary, PublishedVocabulary) and "mask_token" in vocabulary.ids:
        return vocabulary.ids["mask_token"]
    if isinstance(vocabulary, SentencePieceVocabulary | TokenizersVocabulary):
        for piece in MASKS:
            number = id_of_piece(vocabulary, piece)
            if number is not None:
                return number
    sentinels = sentinel_table(vocabulary)
    return sentinels[0] if sentinels else None


def begin_id(vocabulary: Vocabulary) -> int | None:
    """Returns the id that each document begins with: the piece <cls> or [CLS]; None for a vocabulary without it.

    With a folder for transformers a document may begin with several ids; this is the last of them.
    """
    if isinstance(vocabulary, StreamVocabulary):
        return vocabulary.begins[-1] if vocabulary.begins else None
    if isinstance(vocabulary, ByteVocabulary):
        return None
    for piece in BEGINS:
        number = id_of_piece(vocabulary, piece)
        if number is not None:
            return number
    return None


def piece_name(vocabulary: Vocabulary, number: int) -> str:
    """Returns the piece of an id as its file has it; for a vocabulary without a file, the text of the id."""
    if isinstance(vocabulary, SentencePieceVocabulary):
        return vocabulary.tokenizer.IdToPiece(number)
    if isinstance(vocabulary, TokenizersVocabulary):
        return str(vocabulary.tokenizer.id_to_token(number))
    if isinstance(vocabulary, ByteVocabulary) and number < len(SPECIALS):
        return SPECIALS[number]
    return str(vocabulary.decode([number]))


def id_of_piece(vocabulary: Vocabulary, piece: str) -> int | None:
    """Returns the id of a piece of a vocabulary that has a file; None if it has no such piece."""
    if isinstance(vocabulary, TokenizersVocabulary):
        return vocabulary.tokenizer.token_to_id(piece)
    assert isinstance(vocabulary, SentencePieceVocabulary)
    number = vocabulary.tokenizer.PieceToId(piece)
    return number if piece_name(vocabulary, number) == piece else None
