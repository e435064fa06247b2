"""Minimal pairs: of two sentences that differ in a word, a model should find the right one more likely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import regex

from limba.config import InputError, kinds
from limba.config.kinds import PositiveInt
from limba.tools.results import files
from limba.tools.results.outcome import Figures, Outcome, bootstrap
from limba.tools.results.protocol import PROTOCOL
from limba.tools.results.scoring_methods import GAPS

if TYPE_CHECKING:
    from limba.tools.results.scoring import Scorer

LAYOUTS = {  # name: columns of the right and the wrong sentence; columns of the phenomenon, the first that is there
    "MultiBLiMP": (("sen", "wrong_sen"), ("phenomenon", "grammatical_feature", "feature_vals")),
    "BLiMP": (("sentence_good", "sentence_bad"), ("linguistics_term", "UID", "field")),
    "JBLiMP": (("good_sentence", "bad_sentence"), ("phenomenon", "paradigm", "type")),
    "own": (("good", "bad"), ("phenomenon",)),
}
FIRST = "<extra_id_0>"
LAST = "<extra_id_1>"
# A word with its marks, a sign or a space; where words are not separated, a letter with its marks.
WITHOUT_SPACES = r"\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
PIECE = regex.compile(rf"[{WITHOUT_SPACES}]\p{{M}}*|(?:(?![{WITHOUT_SPACES}])[\w\p{{M}}\u200c\u200d])+|\s+|[^\w\s]")


class Pair(NamedTuple):
    """A right and a wrong sentence, and what is wrong with it."""

    good: str
    bad: str
    phenomenon: str


@dataclass(frozen=True)
class MinimalPairs:
    """A task: the share of pairs whose right sentence is the more likely one, in percent."""

    name: str
    file: str  # in the layout of MultiBLiMP, BLiMP or JBLiMP, or a TSV with the columns good, bad and phenomenon
    most: PositiveInt | None = None  # pairs that are read; None: all
    address: str | None = None  # where it is published

    main = "accuracy"  # the figure that counts

    def __post_init__(self) -> None:
        kinds.check(self)

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)

    def read(self, folder: str) -> list[Pair]:
        """Returns the pairs; InputError for a file of another layout."""
        path = files.place_of(folder, self.file)
        _, first = next(files.rows(path, ()), ("", {}))
        if not first:
            raise InputError(f"{path} has no rows; copy it again, or name another file.")
        layout = next((known for known in LAYOUTS.values() if set(known[0]) <= set(first)), None)
        if layout is None:
            raise InputError(
                f"{path} line 1 has the columns {', '.join(map(str, first))}; give sen and wrong_sen"
                " (MultiBLiMP), sentence_good and sentence_bad (BLiMP), good_sentence and bad_sentence (JBLiMP), or"
                " good and bad."
            )
        (good, bad), names = layout
        phenomenon = next((name for name in names if name in first), None)
        pairs = []
        for where, row in files.rows(path, [good, bad, *([phenomenon] if phenomenon else [])]):
            right = files.text_in(where, row, good).strip()
            wrong = files.text_in(where, row, bad).strip()
            pair = Pair(right, wrong, files.label_in(where, row, phenomenon) if phenomenon else "all")
            if not pair.good or not pair.bad or pair.good == pair.bad:
                raise InputError(f"{where}: the columns {good} and {bad} need two sentences that differ; correct it.")
            pairs.append(pair)
        return pairs[: self.most]

    def measure(self, scorer: Scorer, pairs: Sequence[Pair]) -> Outcome:
        """Returns the shares of pairs that a model finds right."""
        good, bad = likelihoods(scorer, pairs)
        return outcome(pairs, good, bad)

    def floors(self, pairs: Sequence[Pair]) -> Mapping[str, Figures]:
        """Returns the figures of chance."""
        return {"chance": {self.main: 50.0}}


def gap(good: str, bad: str) -> tuple[str, tuple[str, str]]:
    """Returns the sentences with a gap where they differ, and what each has there: words, never nothing.

    >>> gap("Copiii merg acasă.", "Copiii merge acasă.")
    ('Copiii <extra_id_0> acasă.', ('merg', 'merge'))
    >>> gap("a venit el", "a venit")
    ('a <extra_id_0>', ('venit el', 'venit'))
    """
    first = PIECE.findall(good)
    second = PIECE.findall(bad)
    shorter = min(len(first), len(second))
    begin = next((i for i in range(shorter) if first[i] != second[i]), shorter)
    end = next((i for i in range(shorter - begin) if first[-1 - i] != second[-1 - i]), shorter - begin)
    words = lambda pieces: "".join(pieces[begin : len(pieces) - end])
    while not (words(first).strip() and words(second).strip()):  # a word is missing in one of them
        begin, end = (begin - 1, end) if begin else (begin, end - 1)
    before = "".join(first[:begin])
    after = "".join(first[len(first) - end :])
    return f"{before.strip()} {FIRST} {after.strip()}".strip(), (words(first).strip(), words(second).strip())


def likelihoods(scorer: Scorer, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the log likelihoods, [N] each, of the right and of the wrong sentences.

    A T5 reads the sentence with the words that differ as a gap, and its targets are `<extra_id_0> words <extra_id_1>`
    (HPLT's evaluation of MultiBLiMP). Any other model scores the whole sentences.
    """
    if scorer.way == GAPS:
        gaps = [gap(pair.good, pair.bad) for pair in pairs]
        sums = scorer.in_gaps([(read, f"{FIRST} {word} {LAST}") for read, words in gaps for word in words])
    else:
        sums = scorer.log_likelihoods([text for pair in pairs for text in (pair.good, pair.bad)])
    return sums[::2], sums[1::2]


def outcome(pairs: Sequence[Pair], good: np.ndarray, bad: np.ndarray) -> Outcome:
    """Returns the shares of pairs whose first log likelihood is the higher one, in all and by phenomenon."""
    right = (np.asarray(good) > np.asarray(bad)).astype(float) * 100
    of_names = {name: right[[pair.phenomenon == name for pair in pairs]] for name in sorted({p[2] for p in pairs})}
    return Outcome(
        {"accuracy": float(right.mean())},
        {
            name: bootstrap(rights.tolist(), PROTOCOL.resamples, PROTOCOL.confidence)
            for name, rights in {**of_names, "accuracy": right}.items()
        },
        {name: float(rights.mean()) for name, rights in of_names.items()},
        {"pairs": len(pairs)},
        predictions=right.tolist(),
    )
