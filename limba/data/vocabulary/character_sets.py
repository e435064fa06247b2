"""The script of the targets' bytes: Latin, hiragana, katakana, kanji, or other.

Unicode's Script property (UAX #24). Kanji is Script=Han. The long vowel mark, which hiragana and katakana share,
counts as katakana, where nearly all of them are. Digits, punctuation, spaces and other scripts are "other".
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

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
    found = np.full([0x110000], OTHER, np.uint8)
    encodable = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    for number, pattern in enumerate(_PATTERNS):
        found[[ord(character) for character in regex.findall(pattern, encodable)]] = number
    return found


def sets_of_bytes(text: np.ndarray) -> np.ndarray:
    """Returns the index in SETS of each byte's character, uint8 [n], for UTF-8 as uint8 [n].

    Bytes that are not part of a whole character are "other".

    >>> [SETS[number] for number in sets_of_bytes(np.frombuffer("aか。".encode(), np.uint8))]
    ['latin', 'hiragana', 'hiragana', 'hiragana', 'other', 'other', 'other']
    """
    found = np.full([len(text)], OTHER, np.uint8)
    padded = np.append(text, np.zeros(3, np.uint8)).astype(np.int32)
    continues = padded & 0xC0 == 0x80
    for length, first, mask in ((1, 0x00, 0x80), (2, 0xC0, 0xE0), (3, 0xE0, 0xF0), (4, 0xF0, 0xF8)):
        places = np.flatnonzero(padded[: len(text)] & mask == first)
        for behind in range(1, length):
            places = places[continues[places + behind]]
        code_points = padded[places] & ~mask
        for behind in range(1, length):
            code_points = code_points << 6 | padded[places + behind] & 0x3F
        sets = _sets_of_code_points()[np.minimum(code_points, 0x10FFFF)]
        for behind in range(length):
            found[places + behind] = sets
    return found


class CharacterSets:
    """The character sets of a vocabulary's tokens in their context."""

    def __init__(self, pieces: Sequence[bytes]):
        """`pieces` is the UTF-8, or part of it, of each id; b"" for ids without text."""
        self._spells = np.array([bool(piece) for piece in pieces])
        filled = [piece or _SPELLS_NOTHING for piece in pieces]
        self._lengths = np.array([len(piece) for piece in filled])
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._bytes = np.frombuffer(b"".join(filled), np.uint8)
        self._dtype = np.min_scalar_type(self._lengths.max())

    def counts(self, tokens: np.ndarray) -> np.ndarray:
        """Returns how many bytes of each token are in each set, unsigned [B, L, sets], for int32 [B, L].

        A character that is spelled by several tokens, as with byte pieces, counts as one character; characters do not
        continue from row to row. An id without text has one byte in "other".
        """
        rows = max(1, _TOKENS_AT_ONCE // tokens.shape[1])
        parts = [self._of_rows(tokens[start : start + rows]) for start in range(0, len(tokens), rows)]
        return np.concatenate(parts)

    def _of_rows(self, tokens: np.ndarray) -> np.ndarray:
        separated = np.pad(tokens, ((0, 0), (0, 1))).ravel()  # id 0 has no text
        lengths = self._lengths[separated]
        token = np.repeat(np.arange(len(separated)), lengths)
        within = np.arange(len(token)) - (np.cumsum(lengths) - lengths)[token]
        sets = sets_of_bytes(self._bytes[self._starts[separated][token] + within])
        found = np.bincount(token * len(SETS) + sets, minlength=len(separated) * len(SETS)).astype(self._dtype)
        return found.reshape(len(tokens), -1, len(SETS))[:, :-1]

    def num_bytes(self, tokens: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns how many bytes in each set the tokens [B, L] with weights [B, L] above 0 have, int64 [sets]."""
        counted = (weights > 0) & self._spells[tokens]
        return self.counts(tokens)[counted].sum(axis=0, dtype=np.int64)
