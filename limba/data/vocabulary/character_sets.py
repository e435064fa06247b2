"""The script of the targets' bytes: Latin, hiragana, katakana, kanji, or other.

Unicode's Script property (UAX #24). Kanji is Script=Han. The long vowel mark, which hiragana and katakana share,
counts as katakana, where nearly all of them are. Digits, punctuation, spaces and other scripts are "other".
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import regex

SETS = ("latin", "hiragana", "katakana", "kanji", "other")
OTHER = SETS.index("other")
_PATTERNS = (r"\p{Script=Latin}", r"\p{Script=Hiragana}", r"[\p{Script=Katakana}ーｰ]", r"\p{Script=Han}")
_SPELLS_NOTHING = b"\xff"  # a byte that never occurs in UTF-8, so it separates characters
_TOKENS_AT_ONCE = 1 << 16  # whose bytes are in memory together


@functools.cache
def _sets_of_code_points() -> np.ndarray:
    """Returns the index in SETS of every code point, uint8 [0x110000]."""
    sets = np.full([0x110000], OTHER, np.uint8)
    all_code_points = np.arange(len(sets), dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    for number, pattern in enumerate(_PATTERNS):
        for run in regex.finditer(f"{pattern}+", all_code_points):
            sets[run.start() : run.end()] = number
    return sets


def sets_of_bytes(text: np.ndarray) -> np.ndarray:
    """Returns the index in SETS of each byte's character, uint8 [n], for UTF-8 as uint8 [n].

    Bytes that are not part of a whole character are "other".

    >>> [SETS[number] for number in sets_of_bytes(np.frombuffer("aか。".encode(), np.uint8))]
    ['latin', 'hiragana', 'hiragana', 'hiragana', 'other', 'other', 'other']
    """
    # A byte that is not part of a whole character becomes a surrogate from U+DC00 on.
    characters = text.tobytes().decode("utf-8", "surrogateescape").encode("utf-32-le", "surrogatepass")
    code_points = np.frombuffer(characters, "<u4")
    is_byte = code_points - np.uint32(0xDC00) < 0x400
    sizes = np.where(is_byte, 1, 1 + (code_points >= 0x80) + (code_points >= 0x800) + (code_points >= 0x10000))
    return np.repeat(_sets_of_code_points()[code_points], sizes)


class CharacterSets:
    """The character sets of a vocabulary's tokens in their context."""

    def __init__(self, pieces: Sequence[bytes], has_dummy_space: bool = False):
        """`pieces` is the UTF-8, or part of it, of each id; b"" for ids without text.

        With `has_dummy_space` the vocabulary puts a space before each document that the text does not have: the first
        token of a document does not spell it.
        """
        self._spells = np.array([bool(piece) for piece in pieces])
        self._has_dummy = np.array([has_dummy_space and piece[:1] == b" " for piece in pieces])
        filled = [piece or _SPELLS_NOTHING for piece in pieces]
        self._lengths = np.array([len(piece) for piece in filled])
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._bytes = np.frombuffer(b"".join(filled), np.uint8)
        self._dtype = np.min_scalar_type(self._lengths.max())

    def counts(self, tokens: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
        """Returns how many bytes of each token are in each set, unsigned [B, L, sets], for int32 [B, L].

        `starts` [B, L] is True at the first token of a document. A character that is spelled by several tokens, as with
        byte pieces, counts as one character; characters do not continue from row to row. An id without text, and a
        dummy space alone, have one byte in "other".
        """
        rows = max(1, _TOKENS_AT_ONCE // tokens.shape[1])
        parts = [self._of_rows(tokens[start : start + rows]) for start in range(0, len(tokens), rows)]
        counts = np.concatenate(parts)
        if starts is not None:
            # The dummy space is not text. A token that spells nothing else keeps its byte in "other", as a token that
            # spells nothing does.
            spells_more = self._lengths[tokens] > 1
            counts[self._dummies(tokens, starts) & spells_more, OTHER] -= 1
        return counts

    def _dummies(self, tokens: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Returns True at the tokens that spell a document's dummy space, bool [B, L]."""
        return starts & self._has_dummy[tokens]

    def _of_rows(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the counts of some rows, whose bytes are looked at as one text with a separator after each row."""
        separated = np.pad(tokens, ((0, 0), (0, 1))).ravel()  # id 0 has no text
        lengths = self._lengths[separated]
        first_byte = np.cumsum(lengths) - lengths
        token = np.repeat(np.arange(len(separated)), lengths)  # of each byte, the index of its token
        within = np.arange(len(token)) - first_byte[token]  # and its index in that token
        sets = sets_of_bytes(self._bytes[self._starts[separated][token] + within])
        counts = np.bincount(token * len(SETS) + sets, minlength=len(separated) * len(SETS)).astype(self._dtype)
        return counts.reshape(len(tokens), -1, len(SETS))[:, :-1]

    def num_bytes(self, tokens: np.ndarray, weights: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
        """Returns how many bytes in each set the tokens [B, L] with weights [B, L] above 0 have, int64 [sets]."""
        counted = (weights > 0) & self._spells[tokens]
        if starts is not None:
            counted &= ~(self._dummies(tokens, starts) & (self._lengths[tokens] == 1))
        return self.counts(tokens, starts)[counted].sum(axis=0, dtype=np.int64)


def document_starts(
    batches: Sequence[Mapping[str, np.ndarray]],
    eos_id: int,
    is_pair: bool,
    is_one_sequence: bool,
    begin_id: int | None = None,
) -> list[np.ndarray]:
    """Returns True at the targets that are a document's first token, bool [B, L], for batches in the text's order.

    `is_pair`: each row's, or packed segment's, targets are a text of their own. Else documents follow each other, with
    the end of sequence between them, and `is_one_sequence` says that rows, as of a language model, are cut out of that.
    The rest of a packed document that is longer than a row counts as another one. With a `begin_id`, which documents
    begin with, the first token is the one after it.

    >>> features = {"decoder_target_tokens": np.array([[7, 8], [9, 1], [7, 0]])}
    >>> features["decoder_loss_weights"] = features["decoder_target_tokens"]
    >>> document_starts([features], 1, False, True)[0].tolist()
    [[True, False], [False, False], [True, False]]
    """
    all_starts = []
    has_ended = True  # the document before the next row; there is none before the first row
    for batch in batches:
        tokens = batch["decoder_target_tokens"]
        before = np.pad(tokens[:, :-1], ((0, 0), (1, 0)))
        segments = batch.get("decoder_segment_ids")
        if is_pair:
            weighs = batch["decoder_loss_weights"] > 0
            starts = weighs & ~np.pad(weighs[:, :-1], ((0, 0), (1, 0)))
        else:
            starts = before == eos_id
            if is_one_sequence and segments is None:
                for row, row_tokens in enumerate(tokens):
                    starts[row, 0] = has_ended
                    has_ended = bool(row_tokens[-1] in (0, eos_id))
        if segments is not None and (is_pair or is_one_sequence):
            starts |= segments != np.pad(segments[:, :-1], ((0, 0), (1, 0)))
        if begin_id is not None:
            starts = (starts & (tokens != begin_id)) | (before == begin_id)
        all_starts.append(starts & (tokens > 0))
    return all_starts
