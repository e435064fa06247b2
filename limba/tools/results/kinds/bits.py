"""Bits per byte of texts, which do not depend on a vocabulary."""

from __future__ import annotations

import collections
import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from limba.config import InputError, kinds, require
from limba.tools.results import files
from limba.tools.results.outcome import Figures, Outcome
from limba.tools.results.protocol import PROTOCOL
from limba.tools.results.scoring_methods import CAUSAL, GAPS, MASKED

if TYPE_CHECKING:
    from limba.tools.results.scoring import Scorer

Windows = Mapping[str, Sequence[str]]  # of each file
Found = tuple[str, str, float, int]  # a window's file and text; the nats of what is predicted, and its bytes
# Three measures, each with its name: they are not compared with each other, nor do they share a row. Fewer are better.
NAMES = {CAUSAL: "bits per byte", MASKED: "pseudo bits per byte", GAPS: "bits per hidden byte"}


class Gapped(NamedTuple):
    """A window as a T5 reads it and writes it, and how many bytes the hidden words have."""

    read: str
    written: str
    hidden_bytes: int


@dataclass(frozen=True)
class BitsPerByte:
    """A task: the bits that a model needs for a byte of UTF-8, of each file, each script and all; fewer are better.

    A language model reads each window of a text from left to right; a T5 fills gaps of whole words in it, and the bytes
    are counted over these words; an encoder sees all words but the hidden one. So the kinds cannot be compared.
    """

    name: str
    texts: tuple[str, ...]  # .txt, CoNLL-U, or .jsonl or .parquet with the column `column`
    column: str = "text"
    address: str | None = None  # where they are published

    main = NAMES[CAUSAL]

    def __post_init__(self) -> None:
        if isinstance(self.texts, str):
            object.__setattr__(self, "texts", (self.texts,))
        kinds.check(self)
        require(bool(self.texts), "BitsPerByte.texts", "is empty; give the files of the texts.")

    @property
    def files(self) -> tuple[str, ...]:
        return self.texts

    def read(self, folder: str) -> Windows:
        """Returns the windows of each file; InputError for one without text."""
        windows_by_file = {
            name: list(windows(files.prose_of(files.place_of(folder, name), self.column))) for name in self.texts
        }
        for name, windows_of_file in windows_by_file.items():
            if not windows_of_file:
                raise InputError(f"{name} of the task {self.name} has no text; name another file.")
        return windows_by_file

    def measure(self, scorer: Scorer, data: Windows) -> Outcome:
        """Returns the bits per byte of a model."""
        texts_measured: list[Found] = []
        for name, texts in data.items():
            if scorer.way == GAPS:
                rows = [(with_gaps(text), text) for text in texts]
                shown = [(row, text) for row, text in rows if row.hidden_bytes]
                if not shown:
                    raise InputError(
                        f"{name} of the task {self.name} has no line of more than 6 words; give longer texts."
                    )
                nats = -scorer.in_gaps([(row.read, row.written) for row, _ in shown])
                sizes = [row.hidden_bytes for row, _ in shown]
                texts = [text for _, text in shown]
            else:
                nats = -scorer.log_likelihoods(texts)
                sizes = [len(text.encode()) - scorer.num_unscored_bytes(text) for text in texts]
            file = Path(name).name if len({Path(other).name for other in data}) == len(data) else name
            texts_measured += [(file, *measured) for measured in zip(texts, nats.tolist(), sizes, strict=True)]
        return _outcome(NAMES[scorer.way], texts_measured)

    def floors(self, data: Windows) -> Mapping[str, Figures]:
        """Returns no figures: the column of random weights is the floor."""
        return {}


def _outcome(name: str, texts_measured: Sequence[Found]) -> Outcome:
    """Returns the bits per byte of all windows, and as parts of each file and of each script."""
    nats = collections.defaultdict[str, float](float)
    size = collections.Counter[str]()
    for file, text, value, count in texts_measured:
        for group in ("", file, f"{script_of(text)} script"):
            nats[group] += value
            size[group] += count
    bits = {group: nats[group] / math.log(2) / max(1, size[group]) for group in nats}
    return Outcome(
        {name: bits.pop("")},
        parts=bits,
        notes={"bytes": size[""]},
        predictions=[value / math.log(2) for _, _, value, _ in texts_measured],
        sizes=[float(count) for _, _, _, count in texts_measured],
    )


def script_of(text: str) -> str:
    """Returns the script of most letters of a text, by their names in Unicode.

    >>> script_of("Москва, Russia"), script_of("5 + 5"), script_of("東京で")
    ('cyrillic', 'no', 'cjk')
    """
    names = (unicodedata.name(letter, "other").split(maxsplit=1)[0] for letter in text if letter.isalpha())
    most = collections.Counter(names).most_common(1)
    return most[0][0].lower() if most else "no"


def windows(text: str) -> Iterator[str]:
    """Yields the lines of a text, each cut between words into windows of at most `window_bytes` bytes.

    >>> [*windows("unu doi\\n\\ntrei")]
    ['unu doi', 'trei']
    """
    for line in filter(str.strip, text.split("\n")):
        words, joint = _words(line)
        taken: list[str] = []
        size = 0
        for word in words:
            more = len(word.encode()) + len(joint)
            if taken and size + more > PROTOCOL.window_bytes:
                yield joint.join(taken)
                taken = []
                size = 0
            taken.append(word)
            size += more
        yield joint.join(taken)


def _words(text: str) -> tuple[list[str], str]:
    """Returns the words of a text and what joins them; without spaces its letters are what words are elsewhere."""
    return (text.split(), " ") if " " in text.strip() else (list(text.strip()), "")


def with_gaps(text: str) -> Gapped:
    """Returns a window with some of its words hidden; there are no hidden bytes where it is too short.

    As T5 hides spans, the last 3 of each 20 words are hidden, and of a rest of more than 6.

    >>> with_gaps(" ".join("abcdefghijklmnopqrstuv"))[:2]
    ('a b c d e f g h i j k l m n o p q <extra_id_0> u v', '<extra_id_0> r s t <extra_id_1>')
    """
    words, joint = _words(text)
    read = []
    hidden = []
    size = 0
    for start in range(0, len(words), PROTOCOL.gap_every):
        block = words[start : start + PROTOCOL.gap_every]
        if len(block) <= 2 * PROTOCOL.gap_words:
            read.append(joint.join(block))
            continue
        sentinel = f"<extra_id_{len(hidden)}>"
        inside = joint.join(block[-PROTOCOL.gap_words :])
        read += [joint.join(block[: -PROTOCOL.gap_words]), sentinel]
        hidden.append(f"{sentinel} {inside}")
        size += len(inside.encode())
    return Gapped(" ".join(read), " ".join([*hidden, f"<extra_id_{len(hidden)}>"]), size)
