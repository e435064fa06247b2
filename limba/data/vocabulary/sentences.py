"""Sentences of a corpus with some of their words hidden, on which a model is tried."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Runs of letters that are about a word in scripts without spaces.
HAN, KATAKANA = r"[\u3400-\u4dbf\u4e00-\u9fff]", r"[\u30a1-\u30fa\u30fc]"
OTHERS = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"  # Thai, Lao, Burmese, Khmer
UNSPACED = re.compile(rf"{HAN}|{KATAKANA}|{OTHERS}|[\u3041-\u309f]")
WORD = re.compile(rf"{HAN}{{2,4}}|{KATAKANA}{{2,}}|{OTHERS}{{3,6}}|(?:(?!{UNSPACED.pattern})[^\W\d_]){{2,}}")
SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n\s*\n")
LETTERS = (50, 200)  # of a sentence that is shown; half of it in scripts without spaces


class Hidden(NamedTuple):
    """A sentence, its words that are hidden, and the sentence with <extra_id_0> and so on in their place."""

    text: str
    words: tuple[str, ...]
    masked: str


def hidden_words(text: str, num: int = 2) -> Hidden | None:
    """Returns a sentence with `num` of its words hidden, the same ones each time; None if it has too few.

    Words are neither the first nor the last one, no neighbours, and follow a space. In scripts without spaces they are
    runs of kanji or katakana, or a few letters. The choice depends on the text alone, not on a model.

    >>> hidden_words("The module opens the file and reads all of its lines.").masked
    'The module opens <extra_id_0> file and reads all of <extra_id_1> lines.'
    """
    words = [
        match for match in list(WORD.finditer(text))[1:-1] if UNSPACED.match(match[0]) or text[match.start() - 1] == " "
    ]
    draw = random.Random(hashlib.blake2b(text.encode(), digest_size=8).digest())
    draw.shuffle(words)
    chosen: list[re.Match[str]] = []
    for match in words:
        if all(match.end() + 3 <= other.start() or other.end() + 3 <= match.start() for other in chosen):
            chosen.append(match)
        if len(chosen) == num:
            break
    if len(chosen) < num:
        return None
    chosen.sort(key=lambda match: match.start())
    masked, end = "", 0
    for number, match in enumerate(chosen):
        masked += f"{text[end : match.start()]}<extra_id_{number}>"
        end = match.end()
    return Hidden(text, tuple(match[0] for match in chosen), masked + text[end:])


def sentences(documents: Iterable[str], num: int, of_document: int = 1) -> Iterator[Hidden]:
    """Yields `num` sentences, their words hidden: the first fitting ones of each document, at most `of_document`.

    A sentence fits if it has LETTERS letters, nearly all of them of words: no table, no program.
    """
    fitting = (itertools.islice(_fitting(document), of_document) for document in documents)
    return itertools.islice(itertools.chain.from_iterable(fitting), num)


def _fitting(document: str) -> Iterator[Hidden]:
    for part in SENTENCE.split(document):
        text = " ".join(part.split())
        shorter = 2 if UNSPACED.search(text) else 1
        proper = sum(letter.isalpha() or letter in " ,.;:'\u2019\u3001\u3002\u300c\u300d" for letter in text)
        fits = LETTERS[0] // shorter <= len(text) <= LETTERS[1] // shorter and proper > 0.95 * len(text)
        if fits and (hidden := hidden_words(text)) is not None:
            yield hidden
