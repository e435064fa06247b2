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

    Names of sentinels are no text. What the tokenizer leaves out at the end, as spaces, is covered by no token.

    >>> covered_bytes(ByteVocabulary(100), "ăb<extra_id_0>c"), covered_bytes(ByteVocabulary(100), "ăb", 2)
    (4, 2)
    """
    if isinstance(vocabulary, PublishedVocabulary):  # reads such names itself
        ends = _ends(vocabulary, text)
        is_cut = num_tokens is not None and num_tokens < len(ends)
        size = (ends[num_tokens - 1] if num_tokens else 0) if is_cut else None
        shown = _whole(vocabulary, text).encode("utf-8", "replace") if size is None else text.encode()[:size]
        return len(SENTINEL.sub("", shown.decode("utf-8", "replace")).encode())
    parts = SENTINEL.split(text)
    found = 0
    left = num_tokens
    for part, ids in zip(parts, encode_parts(vocabulary, parts), strict=True):
        if left is None or len(ids) <= left:
            found += len(_whole(vocabulary, part).encode("utf-8", "replace"))
        elif left > 0:
            # A part after a gap has no space before it, which the same part alone has: its ends are counted from the
            # last token.
            ends = _ends(vocabulary, part)
            place = left - 1 + len(ends) - len(ids)
            found += ends[max(place, 0)] if ends else 0
        if left is not None:
            left -= len(ids) + 1  # and the sentinel
            if left <= 0:
                break
    return found


def _whole(vocabulary: Vocabulary, text: str) -> str:
    """Returns a text without the spaces around it that a tokenizer may leave out."""
    return text if isinstance(vocabulary, ByteVocabulary) else text.strip(" ")


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
