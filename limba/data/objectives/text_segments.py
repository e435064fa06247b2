"""A text cut at line, sentence or clause ends, spaces or letters into segments that fit, and joined again.

Nothing is lost: the segments' texts and what stands between them are the text, character by character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import regex

from limba.data.dataset import Dataset, preprocessor

Count = Callable[[str], int]

# Scripts that put no space after a sentence: their full stops end one wherever they stand.
WIDE_ENDS = "。！？｡"
# Of Latin, Greek and Cyrillic, Arabic and Urdu, Devanagari, Armenian, Ethiopic, Khmer, Burmese, Tibetan.
ENDS = ".!?…‽؟۔।॥։።፧។៕၊။།" + WIDE_ENDS
CLAUSES = ",;:،؛、，；：፣፤"
CLOSING = "'\"”’»›)\\]}」』）】》〉"
# Where a text may be cut, from the best places to the worst. Each piece holds what separates it from the next one.
_LEVELS = (
    regex.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]*(?:[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+\s*|\Z)"),
    regex.compile(rf".*?(?:[{WIDE_ENDS}]+[{CLOSING}]*\s*|[{ENDS}]+[{CLOSING}]*\s+|\Z)", regex.DOTALL),
    regex.compile(rf".*?(?:[、，；：]+\s*|[{CLAUSES}]+[{CLOSING}]*\s+|\Z)", regex.DOTALL),
    regex.compile(r"\S*(?:\s+|\Z)"),
    regex.compile(r"\X"),
    regex.compile(r".", regex.DOTALL),
)
# The numbers of two of these levels.
LINES = 0
SPACES = 3


class Segment(NamedTuple):
    """A part of a text without spaces at its ends, and the spaces and line ends after it."""

    text: str
    after: str = ""


def segments_of(text: str, count: Count, limit: int, level: int = LINES) -> list[Segment]:
    """Returns the segments of a text, each of as many pieces as `limit` tokens hold; `joined` gives the text back.

    A segment has no line end. `count` returns the tokens of a text, as the model reads it. A text is cut at line ends,
    then where needed at sentence ends, clause ends, spaces, letters with their marks, and code points. Only a single
    code point of more tokens than the limit is longer. The first segment of a text that begins with spaces is empty.
    With level SPACES a text is cut at spaces first, which gives fewer segments.

    >>> segments_of("One two. Three\\n\\nfour", len, 9)
    [Segment(text='One two.', after=' '), Segment(text='Three', after='\\n\\n'), Segment(text='four', after='')]
    """
    segments: list[Segment] = []
    for part in _cut(text, count, limit, level):
        core = part.strip()
        before = part[: len(part) - len(part.lstrip())] if core else part
        if before and segments:
            segments[-1] = segments[-1]._replace(after=segments[-1].after + before)
        elif before:
            segments.append(Segment("", before))
        if core:
            segments.append(Segment(core, part[len(before) + len(core) :]))
    return segments


def joined(segments: Sequence[Segment], texts: Sequence[str] | None = None) -> str:
    """Returns the texts in the segments' places, by default the segments' own: then it is the text that was cut.

    A space follows a text that is not of a script without spaces, where its segment is of one: a translation.

    >>> joined([Segment("はい。"), Segment("犬。")], ["Yes.", "A dog."])
    'Yes. A dog.'
    """
    texts = [segment.text for segment in segments] if texts is None else texts
    parts: list[str] = []
    for number, (segment, text) in enumerate(zip(segments, texts, strict=True)):
        after = segment.after
        is_last = number == len(segments) - 1
        if not after and not is_last and _is_spaced(segment.text, text):
            after = " "
        parts += [text, after]
    return "".join(parts)


def _is_spaced(read: str, written: str) -> bool:
    """Returns whether a sentence of a script without spaces was written in one that has them."""
    ends = regex.compile(rf"[{WIDE_ENDS}、，；：]+[{CLOSING}]*\Z")
    return bool(ends.search(read) and written and not ends.search(written) and written[-1].isascii())


def _cut(text: str, count: Count, limit: int, level: int) -> Iterator[str]:
    """Yields the parts of a text from this level on; lines are never put together."""
    pieces = [piece for piece in _LEVELS[level].findall(text) if piece]
    start = 0
    while start < len(pieces):
        taken = 1 if level == LINES else _fitting(pieces, start, count, limit)
        part = "".join(pieces[start : start + taken])
        start += taken
        if taken == 1 and level + 1 < len(_LEVELS) and count(part.strip()) > limit:
            yield from _cut(part, count, limit, level + 1)
        else:
            yield part


def _fitting(pieces: Sequence[str], start: int, count: Count, limit: int) -> int:
    """Returns how many pieces from a place on fit together, at least 1. A longer text has no fewer tokens."""

    def fits(number: int) -> bool:
        return count("".join(pieces[start : start + number]).strip()) <= limit

    most = len(pieces) - start
    high = 1
    while high < most and fits(min(2 * high, most)):
        high = min(2 * high, most)
    low = high
    high = min(2 * high, most)
    while low < high:  # the last number that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def long_inputs_of(task: object) -> str:
    """Returns what a task does with inputs longer than its length, when text is generated: 'segments' or 'cut'.

    A preprocessor says it by its attribute `long_inputs`; a mixture does what its tasks do if they agree.
    """
    parts = list(getattr(task, "tasks", None) or ([] if task is None else [task]))
    answers = set()
    for part in parts:
        steps = getattr(part, "preprocessors", ())
        kinds = [getattr(getattr(step, "func", step), "long_inputs", None) for step in steps]
        answers.add(next(filter(None, kinds), "cut"))
    return answers.pop() if len(answers) == 1 else "cut"


@preprocessor
def long_inputs_in_segments(dataset: Dataset) -> Dataset:
    """Returns the data set unchanged; a task that has this preprocessor generates text for long inputs in segments.

    >>> long_inputs_in_segments.long_inputs  # by which a run knows it
    'segments'
    """
    return dataset


long_inputs_in_segments.long_inputs = "segments"  # pyright: ignore[reportFunctionMemberAccess]
