"""Which test examples a corpus holds: those that share 13 words in a row with it, as GPT-3's authors looked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.tools.results import files
from limba.tools.results.files import letters
from limba.tools.results.kinds.learned import SECOND
from limba.tools.results.protocol import PROTOCOL

WORD = re.compile(r"\w+")


class Overlap(NamedTuple):
    """How many of a task's test examples a corpus holds."""

    found: int  # that share so many words in a row with it, or are one of its lines
    whole: int  # that are one of its lines
    total: int


def texts_of(corpus: str) -> Iterator[str]:
    """Yields the documents of a corpus: files as `limba train` reads them, or CoNLL-U and its relatives."""
    from limba.api import source_of_files

    if files.layout_of(Path(corpus)) in (".conllu", ".conllup") or corpus.endswith(".zip"):
        for _, cells in files.sentences(files.place_of("", corpus), 1):
            yield " ".join(each[0] for each in cells)
        return
    source = source_of_files(corpus, validation_percent=0.0)
    for unit in source.units("train"):
        for chunk in itertools.count():
            found = source.read_whole("train", unit, chunk)
            if found is None:
                break
            yield from (text.decode(errors="replace") for text in found)


def overlaps(corpus: Iterable[str], tests: Mapping[str, Sequence[str]]) -> dict[str, Overlap]:
    """Returns the overlap of a corpus with the test examples of each task.

    Lines, and what tabs divide in them, are compared without their spaces, words in a row in small letters and without
    punctuation. An example of several texts is found where each of them is a line.

    >>> overlaps(["Ana are mere, da."], {"a": ["Ana are mere , da .", "Ana are"]})
    {'a': Overlap(found=1, whole=1, total=2)}
    >>> overlaps(["Unu.\\tDoi."], {"a": ["Unu . | Doi .", "Unu. | Trei."]})
    {'a': Overlap(found=1, whole=1, total=2)}
    """
    size = PROTOCOL.overlap_words
    given = {name: [set(grams(text, size)) for text in texts] for name, texts in tests.items()}
    wanted = set().union(*(found for texts in given.values() for found in texts))
    whole = {letters(each) for texts in tests.values() for text in texts for each in (text, *text.split(SECOND))}
    seen, lines = set[str](), set[str]()
    for text in corpus:
        lines |= whole.intersection(map(letters, (*text.splitlines(), *re.split(r"[\t\n]", text))))
        seen |= wanted.intersection(grams(text, size))
    found = {}
    for name, texts in given.items():
        is_line = [letters(text) in lines or lines.issuperset(map(letters, text.split(SECOND))) for text in tests[name]]
        shared = [not seen.isdisjoint(each) for each in texts]
        found[name] = Overlap(sum(a or b for a, b in zip(is_line, shared, strict=True)), sum(is_line), len(texts))
    return found


def grams(text: str, size: int) -> Iterator[str]:
    """Yields so many words in a row, wherever they stand in a text."""
    words = WORD.findall(text.lower())
    for start in range(len(words) - size + 1):
        yield " ".join(words[start : start + size])
