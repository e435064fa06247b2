"""A published vocabulary as the data stream reads it: its ids are one higher, so that 0 is padding and nothing else.

Packing, objectives and the marks of the stream rely on that 0. `limba.data.packing.model_features` gives the model the
published ids, so nothing behind it knows of the shift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.vocabularies import Vocabulary


class Roles(Protocol):
    """What the stream needs of the special ids of a model; `special_ids.SpecialIds` has it."""

    @property
    def mask(self) -> int | None: ...

    @property
    def filling(self) -> int: ...

    @property
    def around(self) -> tuple[int, ...]: ...


class RowIds(NamedTuple):
    """The published ids that rows of a model have besides the stream's."""

    start: int  # the first input of a decoder
    filling: int  # stands where the stream has padding, and is never read


class StreamVocabulary(Vocabulary):
    """The vocabulary of a folder for transformers, whose ids the stream reads higher by `offset`.

    The offset is 0 for T5's layout, in which 0 is a padding token already, and 1 for every other one. A document begins
    with `begins` and ends with `ends`, ids of the stream: the folder's own template, and for a language model the end
    that it writes. `address` is how the configuration names the folder.
    """

    def __init__(
        self,
        published: PublishedVocabulary,
        trained: PublishedVocabulary,
        special: Roles,
        address: str,
        offset: int,
        begins: Sequence[int],
        ends: Sequence[int],
        start: int,
        is_one_sequence: bool,
        never_text: frozenset[int],
    ):
        """`trained` is the same vocabulary, which reads the name of a special token in a text as plain text.

        `begins`, `ends` and `start` are published ids; `start` is the first input of a decoder. `is_one_sequence`: the
        model has one stack, which reads inputs and targets as one row. `never_text` are the published ids that no
        text is given.
        """
        super().__init__(extra_ids=0)
        unknown = published.unk_id
        self.published = published
        self._trained = trained
        self.special = special
        self.address = address
        self.offset = offset
        self.begins = tuple(number + offset for number in begins)
        self.ends = tuple(number + offset for number in ends)
        self.start = start
        self.is_one_sequence = is_one_sequence
        self._never_text = never_text
        # What a text has instead of an id that is never text.
        self._instead = () if unknown is None or unknown in never_text else (unknown,)

    @property
    def row_ids(self) -> RowIds | None:
        """What turns rows of the stream into the model's; None where they are the model's already."""
        return RowIds(self.start, self.special.filling) if self.offset else None

    @property
    def eos_id(self) -> int | None:  # type: ignore[override]
        return self.ends[-1] if self.ends else None

    @property
    def unk_id(self) -> int | None:  # type: ignore[override]
        return self.shifted(self.published.unk_id)

    @property
    def mask_id(self) -> int | None:
        """What stands for a hidden token; None for a vocabulary without a mask."""
        return self.shifted(self.special.mask)

    def shifted(self, number: int | None) -> int | None:
        """Returns a published id as the stream has it."""
        return None if number is None else number + self.offset

    @property
    def without_text(self) -> list[int]:
        """The ids as which no text is read: special tokens, sentinels, and those with a role."""
        return [number + self.offset for number in sorted(self._never_text) if number < self.published.vocab_size]

    @property
    def _base_vocab_size(self) -> int:
        return self.published.vocab_size + self.offset

    def encode(self, s: str) -> Sequence[int]:
        """Returns the ids of a text, none of which has a role.

        A SentencePiece model may have the name of a special token, such as </s> or <extra_id_0>, as an ordinary piece;
        here that piece is unknown.
        """
        ids = self._trained.encode(s)
        if not self._never_text.isdisjoint(ids):
            as_text = list[int]()
            for number in ids:
                if number in self._never_text:
                    as_text += self._instead
                else:
                    as_text.append(number)
            ids = as_text
        return [number + self.offset for number in ids]

    def _decode(self, ids: list[int]) -> str:
        return self.published.text_of([number - self.offset for number in ids if number >= self.offset])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamVocabulary) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)


def published_of(vocabulary: Vocabulary) -> Vocabulary:
    """Returns the vocabulary with the model's own ids: the published one behind a stream's, any other as it is."""
    return vocabulary.published if isinstance(vocabulary, StreamVocabulary) else vocabulary


def offset_of(vocabulary: Vocabulary) -> int:
    """Returns how much higher the ids of the stream are than the model's."""
    return vocabulary.offset if isinstance(vocabulary, StreamVocabulary) else 0


def row_ids_of(vocabulary: Vocabulary) -> RowIds | None:
    """Returns what turns rows of the stream into the model's; None where they are the model's already."""
    return vocabulary.row_ids if isinstance(vocabulary, StreamVocabulary) else None
