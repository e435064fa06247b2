"""Restoring diacritics: inputs are text without them, made on the fly from any monolingual corpus.

The letters of a language are those that people often type without their marks. Romanian's s and t have a comma
below; old keyboards had only the cedilla, which is read as a comma.
"""

from __future__ import annotations

import hashlib
import random
import re
import unicodedata
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from limba.config import InputError
from limba.data.sources.units import call_numpy

LETTERS = {
    "ro": "ăâîșț",
    "fr": "àâçéèêëîïôùûüÿ",
    "es": "áéíñóúü",
    "pt": "áâãàçéêíóôõú",
    "pl": "ąćęłńóśźż",
    "cs": "áčďéěíňóřšťúůýž",
    "sk": "áäčďéíĺľňóôŕšťúýž",
    "hu": "áéíóöőúüű",
    "hr": "čćđšž",
    "tr": "çğıöşü",
}
COMMAS = str.maketrans("ŞşŢţ", "ȘșȚț")  # cedilla to comma
PLAIN = {"ł": "l", "đ": "d", "ı": "i"}  # letters that Unicode does not decompose
WORD = re.compile(r"\w+")


def _plain(letter: str) -> str:
    return PLAIN.get(letter) or unicodedata.normalize("NFD", letter)[0]


def letters_of(language: str) -> str:
    """Returns a language's small letters with diacritics; InputError for an unknown language."""
    if language not in LETTERS:
        raise InputError(f"The diacritics of language {language!r} are not known; choose one of {', '.join(LETTERS)}.")
    return LETTERS[language]


def table(language: str) -> dict[int, str]:
    """Returns a table for `str.translate` from letters with diacritics to plain ones, capitals included."""
    small = {letter: _plain(letter) for letter in letters_of(language)}
    # A letter whose capital is two characters has no entry for it.
    capitals = {letter.upper(): plain.upper() for letter, plain in small.items() if len(letter.upper()) == 1}
    return str.maketrans({**capitals, **small})


def normalized(text: str, language: str) -> str:
    """Returns the text with each letter as one character, and in Romanian with commas instead of cedillas."""
    text = unicodedata.normalize("NFC", text)
    return text.translate(COMMAS) if language == "ro" else text


def stripped(text: str, language: str, share: float = 1.0) -> str:
    """Returns the text without diacritics, or without those of a random share of its words.

    The choice of words depends only on the text, so that a stream can be resumed.

    >>> stripped("Țara mea și învățătura ei", "ro")
    'Tara mea si invatatura ei'
    """
    letters = table(language)
    if share >= 1.0:
        return text.translate(letters)
    draws = random.Random(hashlib.blake2b(text.encode(), digest_size=8).digest())
    return WORD.sub(lambda word: word[0].translate(letters) if draws.random() < share else word[0], text)


def segments(text: str, num_bytes: int) -> Iterator[str]:
    """Yields the text's lines in parts of whole words of at most that many bytes; a longer word is a part itself."""
    for line in text.splitlines():
        part: list[str] = []
        size = 0
        for word in line.split():
            length = len(word.encode()) + 1
            if part and size + length > num_bytes + 1:
                yield " ".join(part)
                part, size = [], 0
            part.append(word)
            size += length
        if part:
            yield " ".join(part)


def restore_diacritics(
    language: str = "ro", share: float = 1.0, bytes_per_token: float = 2.5, capitals: bool = False
) -> Callable[..., tf.data.Dataset]:
    """Returns a preprocessor from {"text"} to {"inputs", "targets"}, strings: text without its diacritics, and with.

    With `capitals` the inputs are in capital letters, as old records and telegrams are.
    Documents are cut at spaces into segments of at most `bytes_per_token` times the shorter length (1 for bytes).
    Segments without a letter that can have a diacritic are skipped. Raises InputError for an unknown language.
    """
    bases = re.compile(f"[{''.join({_plain(letter) for letter in letters_of(language)})}]", re.IGNORECASE)

    def restore(dataset: tf.data.Dataset, sequence_length: dict[str, int] | None = None) -> tf.data.Dataset:
        limit = min(sequence_length.values()) - 1 if sequence_length else 512
        num_bytes = max(8, int(limit * bytes_per_token))

        def pairs(text: bytes) -> np.ndarray:
            whole = normalized(text.decode(), language)
            parts = [part for part in segments(whole, num_bytes) if bases.search(part.translate(table(language)))]
            plain = [stripped(part, language, share) for part in parts]
            inputs = [text.upper() for text in plain] if capitals else plain
            rows = [[given.encode(), part.encode()] for given, part in zip(inputs, parts, strict=True)]
            return np.array(rows, object).reshape(-1, 2)

        rows = dataset.flat_map(
            lambda example: tf.data.Dataset.from_tensor_slices(call_numpy(pairs, tf.string, [None, 2], example["text"]))
        )
        return rows.map(lambda row: {"inputs": row[0], "targets": row[1]})

    return restore
