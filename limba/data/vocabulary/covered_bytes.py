"""The bytes of a text that its tokens cover, by the tokenizer's own offsets: what bits per byte are divided by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from limba.data.vocabulary.around_gaps import encode_parts
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary

SENTINEL = re.compile(r"<extra_id_\d+>")


def covered_bytes(vocabulary: Vocabulary, text: str, num_tokens: int | None = None) -> int:
    """Returns how many UTF-8 bytes of a text its first `num_tokens` tokens cover, all of them for None.

    A sentinel covers its name, as the text has it. Spaces at the ends that a tokenizer leaves out are covered by no
    token; spaces that have tokens of their own, or are part of one, are covered.

    >>> covered_bytes(ByteVocabulary(100), "ăb"), covered_bytes(ByteVocabulary(100), "ăb", 2)
    (3, 2)
    """
    text = _without_left_out(vocabulary, text)
    if num_tokens is None:
        return _num_bytes(text)
    if isinstance(vocabulary, PublishedVocabulary):  # reads the names of sentinels itself
        ends = _ends(vocabulary, text)
        return ends[min(num_tokens, len(ends)) - 1] if num_tokens and ends else 0
    parts = SENTINEL.split(text)
    sentinels = [*SENTINEL.findall(text), ""]  # the one after each part; none after the last
    num_covered = 0
    tokens_left = num_tokens
    for part, sentinel, ids in zip(parts, sentinels, encode_parts(vocabulary, parts), strict=True):
        if len(ids) > tokens_left:
            return num_covered + _covered_of_part(vocabulary, part, len(ids), tokens_left)
        num_covered += _num_bytes(part)
        tokens_left -= len(ids)
        if not tokens_left:
            break
        num_covered += len(sentinel)
        tokens_left -= 1
    return min(num_covered, covered_bytes(vocabulary, text))


def _covered_of_part(vocabulary: Vocabulary, part: str, num_ids: int, num_tokens: int) -> int:
    """Returns how many bytes of a part of a text the first `num_tokens` of its `num_ids` tokens cover."""
    ends = _ends(vocabulary, part)
    if not num_tokens or not ends:
        return 0
    # The same part as a text of its own may have a token more, for the space that is put before a text. So the ends are
    # counted from the last token.
    index = num_tokens - 1 + len(ends) - num_ids
    return ends[max(index, 0)]


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _without_left_out(vocabulary: Vocabulary, text: str) -> str:
    """Returns a text without the spaces at its ends that a tokenizer leaves out: without them it has the same ids."""
    for stripped in (text.rstrip(" "), text.lstrip(" "), text.strip(" ")):
        if stripped != text and [*vocabulary.encode(stripped)] == [*vocabulary.encode(text)]:
            text = stripped
    return text


def _ends(vocabulary: Vocabulary, text: str) -> Sequence[int]:
    """Returns how many bytes of a text come before the end of each of its tokens."""
    if isinstance(vocabulary, ByteVocabulary):
        return range(1, _num_bytes(text) + 1)
    if isinstance(vocabulary, SentencePieceVocabulary):
        pieces: Any = vocabulary.tokenizer.encode(text, return_type="proto").pieces
        return [piece.end for piece in pieces]  # counted in bytes
    if not isinstance(vocabulary, TokenizersVocabulary):  # one of the user's own: each token gets an equal share
        num_tokens = max(1, len(vocabulary.encode(text)))
        return [len(text.encode()) * (number + 1) // num_tokens for number in range(num_tokens)]
    bytes_before = [0]  # each letter
    for letter in text:
        bytes_before.append(bytes_before[-1] + _num_bytes(letter))
    offsets = vocabulary.tokenizer.encode(text, add_special_tokens=False).offsets  # counted in letters
    return [bytes_before[end] for _, end in offsets]
