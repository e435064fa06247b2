"""Vocabularies in T5's layout: pad 0, end of sequence 1, unknown 2, sentinels counted down from the top.

Raffel et al. 2020 (arXiv:1910.10683, section 2.2): a SentencePiece unigram model and 100 sentinels above its pieces, of
which `<extra_id_0>` has the highest id. They are added when the model is loaded; mT5's published model, and others,
have them as their last pieces already.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import sentencepiece

from limba.config import InputError, require
from limba.data.vocabulary.files import content, is_folder, place_of
from limba.data.vocabulary.published import PublishedVocabulary, open_address
from limba.data.vocabulary.stream import StreamVocabulary, published_of
from limba.data.vocabulary.tokenizers import BYTE, TokenizersVocabulary
from limba.data.vocabulary.tokenizers import SPACE as SPACE
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, parse_model, plain
from limba.data.vocabulary.vocabularies import Vocabulary as Vocabulary

logger = logging.getLogger(__name__)

NUM_SENTINELS = 100
MOST_EXTRA_IDS = 100_000  # more than a row of any length has gaps
ROWS_MULTIPLE = 128
BYTE_SENTINELS = 11  # of bytes without extra ids: 0xFF to 0xF5 are in no UTF-8; 0xF4 begins letters from U+100000 on
MOST_BYTE_SENTINELS = 128  # 0xFF to 0x80; the other bytes are ASCII
MASKS = ("<mask>", "[MASK]", "<|mask|>")  # of XLM-R, BERT and EuroBERT
SENTINEL = re.compile(rf"{SPACE}?<extra_id_(\d+)>")
# Sentences on which pieces must have as many bytes as the text: see `_reason_against_bytes`.
SAMPLE = (
    "The quick brown fox doesn't jump (over 3 dogs), it sleeps.",
    "a e i o u n t r s l d",
    "Toate ființele umane se nasc libere și egale în demnitate și în drepturi.",
    "Усі люди народжуються вільними і рівними у своїй гідності.",
    "すべての人間は、生まれながらにして自由である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में स्वतन्त्रता है।",
    "Mọi người sinh ra đều được tự do và bình đẳng.",
)


def address_of(vocabulary: object) -> str | None:
    """Returns the path or address of a vocabulary's file or folder; None for one without a file, such as bytes."""
    if isinstance(vocabulary, StreamVocabulary | PublishedVocabulary):
        return vocabulary.address
    if isinstance(vocabulary, TokenizersVocabulary):
        return vocabulary.path
    return vocabulary.sentencepiece_model_file if isinstance(vocabulary, SentencePieceVocabulary) else None


def of_run(vocabulary: Vocabulary, directory: str | None) -> Vocabulary:
    """Returns a task's vocabulary as it is read: from the copy in a run's `directory` if there is one.

    For seqio's own vocabulary at an address it is ours, which can read addresses.
    """
    ours = plain(vocabulary)
    if isinstance(ours, StreamVocabulary):
        return ours
    address = address_of(ours)
    if address is None:
        return ours if isinstance(ours, TokenizersVocabulary) else vocabulary
    path = place_of(address, directory)
    has_copy = path != address
    if isinstance(ours, TokenizersVocabulary):
        return TokenizersVocabulary(path) if has_copy else ours
    if type(ours) is SentencePieceVocabulary and (has_copy or "://" in address):
        return ours.at(path)
    return vocabulary


def load_vocabulary(path_or_byte: str, extra_ids: int = NUM_SENTINELS) -> Vocabulary:
    """Returns ByT5's byte vocabulary for 'byte', else the SentencePiece model, or tokenizer.json, at a path or address.

    For a folder for transformers, or a hub id, it is what transformers reads there. A model that has sentinels gets no
    others. Raises InputError for a file that is missing, unreadable, or not a SentencePiece model with pad 0 and an
    end-of-sequence piece.

    >>> load_vocabulary("byte").encode("ă"), load_vocabulary("byte").vocab_size
    ([199, 134], 359)
    """
    require(
        extra_ids <= MOST_EXTRA_IDS,
        "DataConfig.extra_ids",
        f"is {extra_ids:,}, and each is a row of the model's embedding; give at most {MOST_EXTRA_IDS:,}.",
    )
    if path_or_byte == "byte":
        return ByteVocabulary(extra_ids=extra_ids)
    if is_folder(path_or_byte):
        return open_address(path_or_byte)
    if path_or_byte.endswith(".json"):
        vocabulary = TokenizersVocabulary(path_or_byte)
        vocabulary.tokenizer  # noqa: B018  a wrong file is found now
        return vocabulary
    model = read_model(path_or_byte)
    num_inside = sum(1 for piece in model.pieces if SENTINEL.fullmatch(piece.piece))
    if num_inside and extra_ids:
        logger.info("%s has %d sentinels of its own; none are added.", path_or_byte, num_inside)
        extra_ids = 0
    vocabulary = SentencePieceVocabulary(path_or_byte, extra_ids=extra_ids)
    _check_layout(vocabulary, path_or_byte)
    return vocabulary


def check_vocabulary(vocabulary: Vocabulary, num_rows: int, needs_sentinels: bool = True) -> None:
    """Raises InputError for a vocabulary that cannot be trained with.

    That is one whose ids exceed the model's embedding rows, whose id 0 is not padding alone, or that lacks sentinels
    which are needed.
    """
    where = address_of(vocabulary) or "'byte'"
    if isinstance(vocabulary, SentencePieceVocabulary):
        read_model(where)
        _check_layout(vocabulary, where)
    if isinstance(vocabulary, TokenizersVocabulary) and not isinstance(vocabulary, PublishedVocabulary):
        _check_padding(vocabulary)
    check_rows(vocabulary, num_rows)
    if needs_sentinels and not num_sentinels(vocabulary):
        if isinstance(vocabulary, StreamVocabulary):
            raise InputError(
                f"The vocabulary {where} has 0 sentinels among its {published_of(vocabulary).vocab_size:,} ids, and the"
                " task's objective needs <extra_id_0>, <extra_id_1>, …; set DataConfig.objective to prefix_lm or"
                " lm_adaptation, or give a folder whose tokenizer has sentinels."
            )
        raise InputError(
            f"The vocabulary {where} has no sentinels (<extra_id_0>, …); set DataConfig.vocabulary to its path with"
            f" DataConfig.extra_ids {NUM_SENTINELS}, or give the task's own vocabulary extra_ids={NUM_SENTINELS}.",
            fix=("DataConfig.extra_ids", NUM_SENTINELS),
        )


def _check_padding(vocabulary: TokenizersVocabulary) -> None:
    """Raises InputError for a tokenizer.json whose id 0 is not padding alone: 0 has no weight in training."""
    first = vocabulary.tokenizer.id_to_token(0)
    advice = "give one with a token for padding, such as <pad>, at id 0"
    if vocabulary.eos_id == 0:
        raise InputError(
            f"The vocabulary {vocabulary.path} has its end of sequence, {first!r}, at id 0, which is padding in"
            f" training, so a model would never learn to write it; {advice}."
        )
    added = vocabulary.tokenizer.get_added_tokens_decoder()
    if 0 not in added or not added[0].special:
        raise InputError(
            f"The vocabulary {vocabulary.path} has {first!r} at id 0, which must be padding for training; {advice}."
        )


def check_rows(vocabulary: Vocabulary, num_rows: int) -> None:
    """Raises InputError if the ids exceed the model's embedding rows."""
    where = address_of(vocabulary) or "'byte'"
    vocabulary = published_of(vocabulary)
    if vocabulary.vocab_size > num_rows and isinstance(vocabulary, PublishedVocabulary):
        raise InputError(
            f"The tokenizer of {where} has {vocabulary.vocab_size:,} ids, and the model {num_rows:,} rows; resize the"
            " model's embedding in transformers, or take the tokens without a row out of the tokenizer."
        )
    if vocabulary.vocab_size > num_rows:
        fitting = PieceTable(vocabulary).fitting_rows
        raise InputError(
            f"The vocabulary {where} has {vocabulary.vocab_size} ids, sentinels included, and the model {num_rows}"
            f" rows; set ModelConfig.vocab_size to {fitting}, or take a smaller vocabulary.",
            fix=("ModelConfig.vocab_size", fitting),
        )


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
    table = PieceTable(vocabulary)
    counted_down = list[int]()
    for number in range(last, -1, -1):
        match = SENTINEL.fullmatch(table.name(number))
        if match is None or int(match[1]) != len(counted_down):
            break
        counted_down.append(number)
    return counted_down or list(_sentinels_by_name(table))


def _sentinels_by_name(table: PieceTable) -> Iterator[int]:
    """Yields the ids of <extra_id_0>, <extra_id_1>, …, by their names, up to the first that is not there."""
    for number in itertools.count():
        name = f"<extra_id_{number}>"
        sentinel = table.id_of(name)
        if sentinel is None:
            sentinel = table.id_of(SPACE + name)
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
        table = PieceTable(vocabulary)
        for piece in MASKS:
            number = table.id_of(piece)
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
    table = PieceTable(vocabulary)
    if table.kind == "bytes":
        return None
    begin = table.id_of("<cls>")
    return table.id_of("[CLS]") if begin is None else begin


def content_name(vocabulary: Vocabulary) -> str:
    """Returns a name that depends on a vocabulary's content, not on its path or added sentinels."""
    if isinstance(vocabulary, StreamVocabulary):
        around = f"{vocabulary.offset} {vocabulary.begins} {vocabulary.ends} {vocabulary.start} {vocabulary.mask_id}"
        return f"{content_name(vocabulary.published)} {around}"
    if isinstance(vocabulary, SentencePieceVocabulary):
        model = hashlib.blake2b(vocabulary.tokenizer.serialized_model_proto(), digest_size=16).hexdigest()
        return f"sentencepiece {model}"
    if isinstance(vocabulary, TokenizersVocabulary):
        return f"tokenizers {hashlib.blake2b(vocabulary.tokenizer.to_str().encode(), digest_size=16).hexdigest()}"
    return f"{type(vocabulary).__name__} {vocabulary.vocab_size}"


def encoder(vocabulary: Vocabulary) -> Callable[[Sequence[bytes]], list[np.ndarray]]:
    """Returns a function from texts to the tokens of each, int32 [n]."""
    if isinstance(vocabulary, ByteVocabulary):
        first = np.int32(first_byte(vocabulary))
        return lambda texts: [np.frombuffer(text, np.uint8) + first for text in texts]
    if not isinstance(vocabulary, SentencePieceVocabulary):
        return lambda texts: [np.asarray(vocabulary.encode(text.decode()), np.int32) for text in texts]
    encode = vocabulary.tokenizer.Encode

    def encoded(texts: Sequence[bytes]) -> list[np.ndarray]:
        if len(texts) == 1:
            return [encode(texts[0], return_type="numpy")]
        # All at once, so that the other shards wait for the interpreter only once.
        return encode(list(texts), thread_pool=_threads(), return_type="numpy")

    return encoded


@functools.cache
def _threads() -> sentencepiece.ThreadPool:
    """Returns threads for all shards' texts; without them each call would start and end one of its own."""
    return sentencepiece.ThreadPool(min(os.cpu_count() or 1, 16))


def has_dummy_space(vocabulary: Vocabulary, pieces: Sequence[bytes]) -> bool:
    """Returns whether a vocabulary puts a space before each text, which is not in it; `pieces` are `piece_bytes`."""
    return b"".join(pieces[number] for number in vocabulary.encode("a"))[:1] == b" "


def first_byte(vocabulary: ByteVocabulary) -> int:
    """Returns the id of byte 0, the first after padding, end of sequence and unknown."""
    return (vocabulary.unk_id or 0) + 1


def is_byte_piece(vocabulary: Vocabulary) -> np.ndarray:
    """Returns bool [ids]: True at the pieces of a single byte, such as <0xE3>; False for a vocabulary without them."""
    marks = np.zeros([vocabulary.vocab_size], bool)
    if isinstance(vocabulary, StreamVocabulary):
        marks[vocabulary.offset :] = is_byte_piece(vocabulary.published)
    if isinstance(vocabulary, TokenizersVocabulary):
        for piece, number in vocabulary.tokenizer.get_vocab(with_added_tokens=False).items():
            marks[number] = BYTE.fullmatch(piece) is not None
    if isinstance(vocabulary, SentencePieceVocabulary):
        for number in range(vocabulary.vocab_size):
            marks[number] = vocabulary.tokenizer.IsByte(number)
    return marks


def piece_bytes(vocabulary: Vocabulary, num_rows: int) -> list[bytes]:
    """Returns `piece_texts` of a vocabulary whose pieces say the bytes of a text, for bits per byte.

    Raises InputError for any other vocabulary: bits per byte would be divided by bytes that the text does not have.
    WordPiece's pieces do not say where a space was, and pieces that end with </w> say it where there is none.
    """
    reason = _reason_against_bytes(vocabulary)
    if reason is not None:
        raise InputError(
            f"The pieces of {address_of(vocabulary)} do not say the bytes of a text ({reason}), so they give no bits"
            " per byte; score texts, whose bytes are counted in the text, or take a vocabulary of SentencePiece, of"
            " byte-level pieces, or of bytes."
        )
    return piece_texts(vocabulary, num_rows)


def _reason_against_bytes(vocabulary: Vocabulary) -> str | None:
    """Returns, in words, how many bytes the pieces of a sentence have and how many it has; None if they always agree.

    A space before the text does not count as a difference, but a text that is longer after normalization does. Words
    with unknown pieces are left out.
    """
    if isinstance(vocabulary, ByteVocabulary):
        return None
    pieces = piece_texts(vocabulary, vocabulary.vocab_size)
    for sentence in SAMPLE:
        text = " ".join(word for word in sentence.split(" ") if vocabulary.unk_id not in vocabulary.encode(word))
        ids = [int(number) for number in vocabulary.encode(text)]
        if vocabulary.unk_id in ids:
            continue  # the space itself is unknown
        num_bytes = sum(len(pieces[number]) for number in ids)
        normalized = _normalized(vocabulary, text)
        expected = min(len(normalized.encode()), len(text.encode()))
        if not expected <= num_bytes <= expected + 1:
            return f"{num_bytes} bytes for {text!r}, which has {expected}"
    return None


def _normalized(vocabulary: Vocabulary, text: str) -> str:
    """Returns a text as it is before it is split into pieces."""
    vocabulary = published_of(vocabulary)
    if isinstance(vocabulary, SentencePieceVocabulary):
        return vocabulary.tokenizer.Normalize(text).replace(SPACE, " ").strip(" ")
    if isinstance(vocabulary, TokenizersVocabulary) and vocabulary.tokenizer.normalizer is not None:
        return vocabulary.tokenizer.normalizer.normalize_str(text).replace(SPACE, " ").strip(" ")
    return text


def piece_texts(vocabulary: Vocabulary, num_rows: int) -> list[bytes]:
    """Returns the UTF-8, or part of it, of each of `num_rows` ids, as far as its piece says it.

    A space is one byte, and so is a byte piece. Padding, end of sequence, sentinels and rows without a piece
    are b"". The unknown piece is b"" too: its text is lost, so bits per byte come out too high.
    """
    texts = [b""] * num_rows
    if isinstance(vocabulary, StreamVocabulary):
        published = piece_texts(vocabulary.published, num_rows - vocabulary.offset)
        for number in (*vocabulary.published.ids.values(), *vocabulary.special.around):
            if number < len(published):
                published[number] = b""  # it has a role, and is not text
        return [b""] * vocabulary.offset + published
    if isinstance(vocabulary, ByteVocabulary):
        first = first_byte(vocabulary)
        count = 256 - BYTE_SENTINELS if has_byte_sentinels(vocabulary) else 256
        texts[first : first + count] = [bytes([value]) for value in range(count)]
        return texts
    if isinstance(vocabulary, TokenizersVocabulary):
        pieces = vocabulary.piece_bytes()[:num_rows]
        return pieces + texts[len(pieces) :]
    assert isinstance(vocabulary, SentencePieceVocabulary)
    processor = vocabulary.tokenizer
    for number in range(min(vocabulary.vocab_size, num_rows)):
        piece = processor.IdToPiece(number)
        is_special = processor.IsControl(number) or processor.IsUnknown(number) or processor.IsUnused(number)
        if processor.IsByte(number):
            texts[number] = bytes([int(piece[3:5], 16)])  # <0xE3>
        elif not is_special and not SENTINEL.fullmatch(piece):
            texts[number] = piece.replace(SPACE, " ").encode()
    return texts


class PieceTable:
    """What the ids of a vocabulary stand for, whatever its kind. Its file is read when it is first needed."""

    def __init__(self, vocabulary: Vocabulary):
        # For a stream's vocabulary the table has the published ids, which users know.
        self.vocabulary = published_of(vocabulary)

    @classmethod
    def at(cls, path_or_byte: str, extra_ids: int = NUM_SENTINELS) -> PieceTable:
        """Returns the table of what `load_vocabulary` returns; raises its errors."""
        return cls(load_vocabulary(path_or_byte, extra_ids))

    @functools.cached_property
    def encode(self) -> Callable[[bytes], np.ndarray]:
        """Returns a document's ids, int32 [n], without an end of sequence."""
        encode = encoder(self.vocabulary)
        return lambda text: encode([text])[0]

    @functools.cached_property
    def unspoken(self) -> tuple[int, ...]:
        """Ids of a row that are not text: padding and the end."""
        if not isinstance(self.vocabulary, PublishedVocabulary):
            return (0, self.eos_id)
        roles = self.vocabulary.ids
        return tuple(roles[role] for role in ("pad_token", "eos_token") if role in roles)

    @functools.cached_property
    def num_sentinels(self) -> int:
        """The number of sentinels, the last ids in T5's order."""
        return num_sentinels(self.vocabulary)

    @property
    def kind(self) -> str:
        """What makes the pieces: 'bytes', 'sentencepiece' or 'tokenizers'."""
        if isinstance(self.vocabulary, ByteVocabulary):
            return "bytes"
        return "sentencepiece" if isinstance(self.vocabulary, SentencePieceVocabulary) else "tokenizers"

    @property
    def eos_id(self) -> int:
        """The end of sequence; 1 where the vocabulary has none."""
        return 1 if self.vocabulary.eos_id is None else int(self.vocabulary.eos_id)

    def check(self, num_rows: int) -> None:
        """Raises InputError if the ids exceed the model's embedding rows, or are not in T5's layout."""
        check_vocabulary(self.vocabulary, num_rows, needs_sentinels=False)

    def read(self) -> None:
        """Reads the file now; InputError if it is missing, unreadable, or another file."""
        if isinstance(self.vocabulary, SentencePieceVocabulary):
            read_model(self.vocabulary.sentencepiece_model_file)
        _ = self.vocabulary.vocab_size  # a tokenizer.json is read now

    @property
    def fitting_rows(self) -> int:
        """The smallest multiple of 128 that is not below the number of ids.

        >>> PieceTable.at("byte").fitting_rows
        384
        """
        return -(-self.vocabulary.vocab_size // ROWS_MULTIPLE) * ROWS_MULTIPLE

    @property
    def content_name(self) -> str:
        """A name that depends on the content, not on a path or added sentinels."""
        return content_name(self.vocabulary)

    @property
    def sentinels(self) -> list[int]:
        """The ids of <extra_id_0>, <extra_id_1>, …"""
        return sentinel_ids(self.vocabulary, self.num_sentinels)

    @property
    def is_byte(self) -> np.ndarray:
        """bool [ids]: True at the single-byte pieces of a SentencePiece model."""
        return is_byte_piece(self.vocabulary)

    def spelled(self, num_rows: int) -> list[bytes]:
        """Returns the UTF-8, or part of it, of each of `num_rows` ids; see `piece_texts`."""
        return piece_texts(self.vocabulary, num_rows)

    def name(self, number: int) -> str:
        """Returns the piece of an id as its file has it; for a vocabulary without a file, the text of the id.

        >>> PieceTable.at("byte").name(100)
        'a'
        """
        if isinstance(self.vocabulary, SentencePieceVocabulary):
            return self.vocabulary.tokenizer.IdToPiece(number)
        if isinstance(self.vocabulary, TokenizersVocabulary):
            return str(self.vocabulary.tokenizer.id_to_token(number))
        return str(self.vocabulary.decode([number]))

    def id_of(self, piece: str) -> int | None:
        """Returns the id of a piece of a vocabulary that has a file; None if it has no such piece."""
        if isinstance(self.vocabulary, TokenizersVocabulary):
            return self.vocabulary.tokenizer.token_to_id(piece)
        assert isinstance(self.vocabulary, SentencePieceVocabulary)
        number = self.vocabulary.tokenizer.PieceToId(piece)
        return number if self.name(number) == piece else None

    def masked(self, inputs: Sequence[int]) -> str:
        """Returns the text of an example's ids with its gaps as <extra_id_0> and so on, without padding and the end."""
        return self._with_gaps(inputs, lambda gap: f"<extra_id_{gap}>")

    def filled(self, inputs: Sequence[int], targets: Sequence[int]) -> str:
        """Returns the text of an example's inputs with each gap replaced by its [span] in the targets.

        >>> pieces = PieceTable.at("byte")
        >>> pieces.filled([100, 358, 102, 1], [358, 101, 1]), pieces.masked([100, 358, 102, 1])
        ('a [b] c', 'a <extra_id_0> c')
        """
        spans: dict[int, list[int]] = {}
        current: list[int] | None = None
        gaps = {number: gap for gap, number in enumerate(self.sentinels)}
        for token in map(int, targets):
            if token in gaps:
                current = spans.setdefault(gaps[token], [])
            elif token not in self.unspoken and current is not None:
                current.append(token)
        return self._with_gaps(inputs, lambda gap: f"[{self.vocabulary.decode(spans.get(gap, []))}]")

    def _with_gaps(self, inputs: Sequence[int], shown: Callable[[int], str]) -> str:
        """Returns the text of ids, in which each gap is what `shown` makes of its number."""
        parts: list[str] = []
        between_gaps: list[int] = []
        gaps = {number: gap for gap, number in enumerate(self.sentinels)}
        for token in map(int, inputs):
            if token in gaps:
                parts += [self.vocabulary.decode(between_gaps), shown(gaps[token])]
                between_gaps = []
            elif token not in self.unspoken:
                between_gaps.append(token)
        parts.append(self.vocabulary.decode(between_gaps))
        return " ".join(part for part in parts if part)


def read_model(path: str) -> Any:
    """Returns the parsed SentencePiece model; InputError if it is missing, unreadable or another file."""
    data = content(path)
    try:
        model = parse_model(data)
    except Exception:  # noqa: BLE001  protobuf's error is not public
        model = None
    if model is None or not len(model.pieces):
        raise InputError(f"The vocabulary {path} is not a SentencePiece model; give a .model file made by its trainer.")
    return model


def _check_layout(vocabulary: SentencePieceVocabulary, path: str) -> None:
    pieces = vocabulary.tokenizer
    if pieces.pad_id() != 0 or pieces.eos_id() < 0:
        raise InputError(
            f"The vocabulary {path} has padding at id {pieces.pad_id()} and end of sequence at {pieces.eos_id()}; "
            "T5 needs padding at 0 and an end of sequence; train one with pad_id=0, eos_id=1, unk_id=2."
        )
