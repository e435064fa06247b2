"""Which ids of a vocabulary a text needs: the pieces that it is cut into, and what these are made of.

A vocabulary without the other pieces splits every text whose pieces have all stayed into the same pieces:

* Unigram: the best way to split a text stays the best of fewer ways. The score of an unknown letter follows from the
  lowest score of all pieces, and the score of a user-defined symbol from the highest one, so both of these pieces stay.
* BPE: merges inside a piece never depend on its neighbours. So a piece needs exactly the pieces that are made
  on the way from its letters to it, and merges that make other pieces are never chosen in such a text.
* WordPiece: the longest piece that fits stays the longest. A word that was unknown as a whole may be split now.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.config import InputError
from limba.data.vocabulary.addresses import address_of
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.sentinels import SENTINEL
from limba.data.vocabulary.spelling import encoder, first_byte
from limba.data.vocabulary.tokenizers import BEGINS, BYTE, ENDS, MASKS, UNKNOWN, TokenizersVocabulary, byte_of_letter
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary, parse_model

AT_ONCE = 256  # documents that are tokenized before the progress is reported
WITH_A_ROLE = (*ENDS, *UNKNOWN, *MASKS, *BEGINS)  # pieces that a run finds by their names
# Of two pieces side by side: (the merge's priority, of which the lowest goes first, and the piece that it makes).
Rank = Callable[[str, str], "tuple[float, str] | None"]


class Pieces:
    """The pieces of a vocabulary by their ids, which of them always stay, and what each is made of.

    Raises InputError for a vocabulary of bytes, and for merges of a kind that is not known here.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        if isinstance(vocabulary, SentencePieceVocabulary):
            names, always, rank = _of_sentencepiece(vocabulary)
        elif isinstance(vocabulary, TokenizersVocabulary):
            names, always, rank = _of_tokenizers(vocabulary)
        else:
            raise InputError(
                "The vocabulary is UTF-8's bytes, and any text may need any of its 256 rows: there is nothing to trim."
            )
        self.names = names  # by id
        self.always = always  # ids that stay whatever the text is
        self._rank = rank  # None: pieces are not made by merges
        self._ids = {name: number for number, name in self.names.items()}

    @property
    def num_ids(self) -> int:
        """One more than the highest id."""
        return max(self.names) + 1

    def counted(self, texts: Sequence[bytes], progress: Callable[[int], object] | None = None) -> Counter[int]:
        """Returns how often UTF-8 texts have each id, without the ids around a text."""
        encode = encoder(self.vocabulary)
        counts = np.zeros([self.num_ids], np.int64)
        for start in range(0, len(texts), AT_ONCE):
            part = texts[start : start + AT_ONCE]
            for ids in encode(part):
                np.add.at(counts, ids, 1)
            if progress is not None:
                progress(sum(map(len, part)))
        return Counter({int(number): int(counts[number]) for number in np.flatnonzero(counts)})

    def with_parts(self, number: int) -> set[int]:
        """Returns an id, and the ids of the pieces that merges make on the way to its piece."""
        if self._rank is None or number in self.always:
            return {number}
        made = merged(self.names[number], self._rank)
        return {number, *(self._ids[piece] for piece in made if piece in self._ids)}

    def kept(self, counts: Mapping[int, int], coverage: float) -> list[int]:
        """Returns the ids that stay: those that always do, and the most frequent up to `coverage` of all tokens."""
        kept = set(self.always)
        total = sum(counts.values())
        covered = sum(counts.get(number, 0) for number in self.always)
        most_frequent_first = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        for number, count in most_frequent_first:
            if covered >= coverage * total:
                break
            # A piece that was kept as a part of another one is counted here, when its turn comes.
            if number not in self.always:
                covered += count
            kept |= self.with_parts(number)
        return sorted(kept)

    def filled(self, kept: Sequence[int], counts: Mapping[int, int], num_rows: int, multiple: int) -> list[int]:
        """Returns the kept ids with others up to a multiple of rows, which hardware reads faster.

        They are the text's next most frequent pieces, then pieces with the lowest ids, then rows without a piece at the
        end. Ids from `num_rows` on have no row.
        """
        filled = set(kept)
        missing = -sum(number < num_rows for number in filled) % multiple
        by_count = sorted(counts, key=lambda number: (-counts[number], number))
        for number in [*by_count, *sorted(self.names), *range(self.num_ids, num_rows)]:
            if not missing:
                break
            if number in filled or number >= num_rows:
                continue
            # One more row may be taken, so a piece whose parts are not all kept cannot be: no merge would make it.
            if number in self.names and not self.with_parts(number) - {number} <= filled:
                continue
            filled.add(number)
            missing -= 1
        return sorted(filled)


def merged(piece: str, rank: Rank) -> Iterator[str]:
    """Yields what BPE's merges make of a piece's letters, one after the other, the letters first.

    >>> ranks = {("a", "b"): 0, ("ab", "c"): 1}
    >>> list(merged("abc", lambda left, right: (ranks[left, right], left + right) if (left, right) in ranks else None))
    ['a', 'b', 'c', 'ab', 'abc']
    """
    symbols = list(piece)
    yield from symbols
    while True:
        best: tuple[float, int, str] | None = None  # (priority, index of the left symbol, the piece that is made)
        for index in range(len(symbols) - 1):
            merge = rank(symbols[index], symbols[index + 1])
            if merge is None:
                continue
            priority, made = merge
            if best is None or priority < best[0]:  # of equal ones the leftmost
                best = (priority, index, made)
        if best is None:
            return
        _, index, made = best
        symbols[index : index + 2] = [made]
        yield made


def _of_sentencepiece(vocabulary: SentencePieceVocabulary) -> tuple[dict[int, str], set[int], Rank | None]:
    model = parse_model(vocabulary.tokenizer.serialized_model_proto())
    kinds = model.SentencePiece
    names = {number: piece.piece for number, piece in enumerate(model.pieces)}
    always: set[int] = set()
    for number, piece in enumerate(model.pieces):
        if piece.type != kinds.NORMAL or SENTINEL.fullmatch(piece.piece):
            always.add(number)
    if model.trainer_spec.model_type != model.trainer_spec.BPE:
        # An unknown letter's score follows from the lowest one, a user-defined symbol's from the highest.
        scores = {number: piece.score for number, piece in enumerate(model.pieces) if number not in always}
        if scores:
            always |= {min(scores, key=scores.__getitem__), max(scores, key=scores.__getitem__)}
        return names, always, None
    by_name = {piece.piece: piece.score for piece in model.pieces if piece.type in (kinds.NORMAL, kinds.USER_DEFINED)}

    def rank(left: str, right: str) -> tuple[float, str] | None:
        result = left + right
        return (-by_name[result], result) if result in by_name else None

    return names, always, rank


def _of_tokenizers(vocabulary: TokenizersVocabulary) -> tuple[dict[int, str], set[int], Rank | None]:
    tokenizer = vocabulary.tokenizer
    state = json.loads(tokenizer.to_str())
    model = state["model"]
    names = {number: name for name, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    always = set(tokenizer.get_added_tokens_decoder())
    for number, name in names.items():
        if BYTE.fullmatch(name) or SENTINEL.fullmatch(name) or name in WITH_A_ROLE:
            always.add(number)
    if isinstance(vocabulary, PublishedVocabulary):
        before, after = vocabulary.template
        always |= {*vocabulary.ids.values(), *before, *after}
    if model.get("unk_token") is not None:
        always |= {number for number, name in names.items() if name == model["unk_token"]}
    if '"ByteLevel"' in json.dumps([state.get("pre_tokenizer"), state.get("decoder")]):
        letters = byte_of_letter()
        always |= {number for number, name in names.items() if name in letters}
    if model["type"] == "Unigram":
        always |= _of_unigram(model)
    if model["type"] != "BPE":
        return names, always, None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise InputError(
            f"The vocabulary {address_of(vocabulary)} marks the inside or the end of words in its merges, which"
            " trimming does not know; trim a byte-level, Gemma's or Llama's vocabulary, or keep this one whole."
        )
    priorities: dict[tuple[str, str], int] = {}
    for priority, merge in enumerate(model["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge  # older files have one string
        priorities[left, right] = priority

    def rank(left: str, right: str) -> tuple[float, str] | None:
        priority = priorities.get((left, right))
        return None if priority is None else (priority, left + right)

    return names, always, rank


def _of_unigram(model: Mapping[str, Any]) -> set[int]:
    """Returns the ids that a unigram model's scores and unknown letters depend on.

    Classes of transformers expect the unknown piece at a fixed id, so all ids up to it stay.
    """
    scores = [score for _, score in model["vocab"]]
    ids = range(len(scores))
    lowest = min(ids, key=scores.__getitem__)
    highest = max(ids, key=scores.__getitem__)
    up_to_unknown = range((model["unk_id"] or 0) + 1)
    return {lowest, highest, *up_to_unknown}


def spells_bytes(vocabulary: Vocabulary) -> np.ndarray:
    """Returns bool [ids]: True at a piece that is one byte of a letter of several bytes: <0xE3>, or a byte-level piece.

    A text for which the vocabulary was made has few of them.

    >>> spells_bytes(ByteVocabulary())[[100, 200]].tolist()  # "a" is a letter, and 0xC5 the first byte of several
    [False, True]
    """
    if isinstance(vocabulary, SentencePieceVocabulary):
        size = vocabulary.vocab_size
        return np.array([vocabulary.tokenizer.IsByte(number) for number in range(size)], bool)
    marks = np.zeros([vocabulary.vocab_size], bool)
    if isinstance(vocabulary, ByteVocabulary):
        first = first_byte(vocabulary)
        marks[first + 0x80 : first + 0x100] = True
    if isinstance(vocabulary, TokenizersVocabulary):
        special = vocabulary.tokenizer.get_added_tokens_decoder()
        names = vocabulary.tokenizer.get_vocab(with_added_tokens=True).items()
        pieces = vocabulary.piece_bytes()
        for name, number in names:
            is_part = len(pieces[number]) == 1 and pieces[number][0] >= 0x80
            marks[number] = number not in special and (BYTE.fullmatch(name) is not None or is_part)
    return marks


def few(names: Iterable[str], most: int = 10) -> str:
    """Returns the first of some names, for a sentence.

    >>> few(["a", "b", "c"], most=2)
    "'a', 'b', …"
    """
    listed = list(names)
    return ", ".join(map(repr, listed[:most])) + (", …" if len(listed) > most else "")
