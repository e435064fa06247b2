"""Texts as callers give them to a model: a list of texts, or pairs of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from limba.config import InputError


def whole_letters(text: str) -> str:
    """Returns the text with halves of surrogate pairs, which JSON can hold and UTF-8 cannot, as question marks.

    >>> whole_letters(chr(0xD83D) + " is half")
    '? is half'
    """
    return text.encode("utf-8", "replace").decode()


def listed(texts: Iterable[str]) -> Sequence[str]:
    """Returns a list of texts; InputError for a single text, and for a list with anything but texts."""
    if isinstance(texts, str):
        raise InputError("A single text is given instead of a list of texts; put it in brackets.")
    texts = list(texts) if isinstance(texts, Iterable) else [texts]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"texts[{number}] is {text!r}, expected a str; give a list of texts.")
    return texts


def paired(pairs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Returns pairs of input and target; InputError for the first element that is not a pair of texts."""
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise InputError(
                f"pairs[{number}] is {pair!r}; give pairs of two texts, (input, target), and '' as the"
                " input where a language model has none."
            )
    return pairs
