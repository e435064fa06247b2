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
    token; those that have tokens of their own, or are part of one, are.

    >>> covered_bytes(ByteVocabulary(100), "ăb"), covered_bytes(ByteVocabulary(100), "ăb", 2)
    (3, 2)
    """
    text = _without_left_out(vocabulary, text)
    if num_tokens is None:
        return len(text.encode("utf-8", "replace"))
    if isinstance(vocabulary, PublishedVocabulary):  # reads the names of sentinels itself
        ends = _ends(vocabulary, text)
        return ends[min(num_tokens, len(ends)) - 1] if num_tokens and ends else 0
    parts = SENTINEL.split(text)
    names = SENTINEL.findall(text)
    found = 0
    left = num_tokens
    for part, name, ids in zip(parts, [*names, ""], encode_parts(vocabulary, parts), strict=True):
        if len(ids) > left:
            # A part after a gap has no space before it, which the same part alone has: its ends are counted from the
            # last token.
            ends = _ends(vocabulary, part)
            place = left - 1 + len(ends) - len(ids)
            return found + (ends[max(place, 0)] if left and ends else 0)
        found += len(part.encode("utf-8", "replace"))
        left -= len(ids)
        if not left:
            break
        found = found + len(name)
        left = left - 1
    return min(found, covered_bytes(vocabulary, text))


def _without_left_out(vocabulary: Vocabulary, text: str) -> str:
    """Returns a text without the spaces at its ends that a tokenizer leaves out: without them it has the same ids."""
    for stripped in (text.rstrip(" "), text.lstrip(" "), text.strip(" ")):
        if stripped != text and [*vocabulary.encode(stripped)] == [*vocabulary.encode(text)]:
            text = stripped
    return text


def _ends(vocabulary: Vocabulary, text: str) -> Sequence[int]:
    """Returns how many bytes of a text come before the end of each of its tokens."""
    if isinstance(vocabulary, ByteVocabulary):
        return range(1, len(text.encode("utf-8", "replace")) + 1)
    if isinstance(vocabulary, SentencePieceVocabulary):
        pieces: Any = vocabulary.tokenizer.encode(text, return_type="proto").pieces
        return [piece.end for piece in pieces]  # counted in bytes
    elif isinstance(vocabulary, TokenizersVocabulary):
        ends = [end for _, end in vocabulary.tokenizer.encode(text, add_special_tokens=False).offsets]
    else:  # a vocabulary of the user's: its tokens have even shares
        size = max(1, len(vocabulary.encode(text)))
        return [len(text.encode()) * (number + 1) // size for number in range(size)]
    sizes = [0]
    for letter in text:
        sizes.append(sizes[-1] + len(letter.encode("utf-8", "replace")))
    return [sizes[end] for end in ends]
