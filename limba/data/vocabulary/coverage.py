"""How much of a text a vocabulary has pieces for: the rest becomes single bytes, or the unknown piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from limba.data.vocabulary.pieces import spells_bytes
from limba.data.vocabulary.vocabularies import ByteVocabulary, Vocabulary

LEAST = 0.9  # share of a text's tokens that are pieces; below it the vocabulary was made for another language
MOST_EXAMPLES = 5  # words that are shown
MOST_LETTERS = 20  # of such a word


class Coverage(NamedTuple):
    """The tokens of some text, and how many of them are not pieces of the vocabulary."""

    tokens: int
    unknown: int  # the unknown piece
    single_bytes: int  # of letters that have several
    examples: tuple[str, ...] = ()  # words that have such tokens, the commonest first

    @property
    def share(self) -> float:
        """The share of the tokens that are pieces; 1 for no text."""
        return 1 - (self.unknown + self.single_bytes) / self.tokens if self.tokens else 1.0


def coverage(vocabulary: Vocabulary, texts: Iterable[str]) -> Coverage:
    """Returns how much of some texts a vocabulary has pieces for; all of them for a vocabulary of bytes.

    >>> coverage(ByteVocabulary(), ["ăb"]).share
    1.0
    """
    if isinstance(vocabulary, ByteVocabulary):
        return Coverage(tokens=sum(len(text.encode()) for text in texts), unknown=0, single_bytes=0)
    marks = spells_bytes(vocabulary)
    unknown_id = vocabulary.unk_id
    tokens = unknown = single_bytes = 0
    lacking = Counter[str]()
    for text in texts:
        ids = vocabulary.encode(text)
        unknown_here = sum(number == unknown_id for number in ids)
        bytes_here = sum(bool(marks[number]) for number in ids)
        tokens += len(ids)
        unknown += unknown_here
        single_bytes += bytes_here
        if unknown_here + bytes_here:
            lacking.update(word[:MOST_LETTERS] for word in text.split())
    examples = []
    for word, _ in lacking.most_common():
        if len(examples) == MOST_EXAMPLES:
            break
        if any(number == unknown_id or marks[number] for number in vocabulary.encode(word)):
            examples.append(word)
    return Coverage(tokens, unknown, single_bytes, tuple(examples))
