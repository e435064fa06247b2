"""A vocabulary's ids with their pieces and roles, whatever its kind; what tools see of one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from limba.data.vocabulary.addresses import content_name
from limba.data.vocabulary.load import NUM_SENTINELS, check_vocabulary, fitting_rows, load_vocabulary, read_model
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.sentinels import id_of_piece, num_sentinels, piece_name, sentinel_ids
from limba.data.vocabulary.shifted import published_of
from limba.data.vocabulary.spelling import encoder, is_byte_piece, piece_texts
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary


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
        return fitting_rows(self.vocabulary)

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
        return piece_name(self.vocabulary, number)

    def id_of(self, piece: str) -> int | None:
        """Returns the id of a piece of a vocabulary that has a file; None if it has no such piece."""
        return id_of_piece(self.vocabulary, piece)

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
