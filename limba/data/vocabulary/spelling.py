"""What pieces say: texts to ids, and the UTF-8 that each id stands for, by which bits per byte are counted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import sentencepiece

from limba.config import InputError, environment
from limba.data.vocabulary.addresses import address_of
from limba.data.vocabulary.sentinels import BYTE_SENTINELS, SENTINEL, has_byte_sentinels
from limba.data.vocabulary.shifted import StreamVocabulary, published_of
from limba.data.vocabulary.tokenizers import BYTE, SPACE, TokenizersVocabulary
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary

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
    return sentencepiece.ThreadPool(min(environment.num_cores(), 16))


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
