"""Sentences of a text with some of their words hidden, for a model to fill in."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Letters of scripts without spaces.
HAN = r"[\u3400-\u4dbf\u4e00-\u9fff]"
KATAKANA = r"[\u30a1-\u30fa\u30fc]"
HIRAGANA = r"[\u3041-\u309f]"
OTHERS = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"  # Thai, Lao, Burmese, Khmer
UNSPACED = re.compile(rf"{HAN}|{KATAKANA}|{OTHERS}|{HIRAGANA}")
# Where no space says what a word is, a run of letters about as long as one stands for it.
WORD = re.compile(rf"{HAN}{{2,4}}|{KATAKANA}{{2,}}|{OTHERS}{{3,6}}|(?:(?!{UNSPACED.pattern})[^\W\d_]){{2,}}")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n\s*\n")
PUNCTUATION = " ,.;:'\u2019\u3001\u3002\u300c\u300d"  # that ordinary sentences have
FEWEST_LETTERS = 50  # of a sentence that is shown; half as many in scripts without spaces
MOST_LETTERS = 200
SHARE_OF_LETTERS = 0.95  # letters and PUNCTUATION in a sentence: more of anything else is a table or a program
FEWEST_BETWEEN = 3  # characters between two hidden words


class Hidden(NamedTuple):
    """A sentence, its words that are hidden, and the sentence with <extra_id_0> and so on in their place."""

    text: str
    words: tuple[str, ...]
    masked: str


def sentences(documents: Iterable[str], num: int, of_document: int = 1) -> Iterator[Hidden]:
    """Yields `num` sentences, their words hidden: the first fitting ones of each document, at most `of_document`.

    A sentence fits if it is neither short nor long, and nearly all of it is words: no table, no program.
    """
    fitting = (itertools.islice(_fitting(document), of_document) for document in documents)
    return itertools.islice(itertools.chain.from_iterable(fitting), num)


def _fitting(document: str) -> Iterator[Hidden]:
    """Yields the sentences of a document that fit, in its order."""
    for part in SENTENCE_END.split(document):
        text = " ".join(part.split())
        if _fits(text):
            hidden = hidden_words(text)
            if hidden is not None:
                yield hidden


def _fits(text: str) -> bool:
    shorter = 2 if UNSPACED.search(text) else 1
    if not FEWEST_LETTERS // shorter <= len(text) <= MOST_LETTERS // shorter:
        return False
    num_ordinary = sum(letter.isalpha() or letter in PUNCTUATION for letter in text)
    return num_ordinary > SHARE_OF_LETTERS * len(text)


def hidden_words(text: str, num: int = 2) -> Hidden | None:
    """Returns a sentence with `num` of its words hidden, the same ones each time; None if it has too few.

    Neither the first word nor the last one is hidden, and no two neighbours; a hidden word follows a space. In scripts
    without spaces words are runs of kanji or katakana, or a few letters. The choice depends on the text alone, not on a
    model.

    >>> hidden_words("The module opens the file and reads all of its lines.").masked
    'The module opens <extra_id_0> file and reads all of <extra_id_1> lines.'
    """
    matches = list(WORD.finditer(text))
    words = [match for match in matches[1:-1] if UNSPACED.match(match[0]) or text[match.start() - 1] == " "]
    draw = random.Random(hashlib.blake2b(text.encode(), digest_size=8).digest())
    draw.shuffle(words)
    chosen: list[re.Match[str]] = []
    for match in words:
        if all(_are_apart(match, other) for other in chosen):
            chosen.append(match)
        if len(chosen) == num:
            break
    if len(chosen) < num:
        return None
    chosen.sort(key=lambda match: match.start())
    masked = ""
    end = 0
    for number, match in enumerate(chosen):
        masked += f"{text[end : match.start()]}<extra_id_{number}>"
        end = match.end()
    return Hidden(text, tuple(match[0] for match in chosen), masked + text[end:])


def _are_apart(one: re.Match[str], other: re.Match[str]) -> bool:
    is_before = one.end() + FEWEST_BETWEEN <= other.start()
    is_after = other.end() + FEWEST_BETWEEN <= one.start()
    return is_before or is_after
