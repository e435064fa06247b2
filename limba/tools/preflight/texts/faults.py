"""What is wrong with text, and the text without it: rules for a sample, and for `limba clean`, which applies them.

The shares from which on a rule is a warning have their reasons in docs/preflight.md.
"""

from __future__ import annotations

import dataclasses
import hashlib
import html
import re
import statistics
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

# Returns a document without the fault, or "" where it should go; texts of several columns have SEPARATOR between them.
Change = Callable[[str], str]
SEPARATOR = "\0"
# Japanese and Chinese have no spaces: a letter is a word. Marks of other scripts belong to their words.
WORD = re.compile(
    "[\u3040-\u30ff\u3400-\u9fff]|[\\w\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u109f\u1780-\u17ff]+"
)
CONTROL = re.compile("[\0-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffe\uffff]")
# UTF-8 that was read as Latin-1 or Windows-1252, and written as UTF-8 again: ă is then Äƒ, é Ã©, ‘ â€˜.
_TAIL = "[\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]"
DOUBLE_ENCODED = re.compile(f"[Â-ß]{_TAIL}|[à-ï]{_TAIL}{{2}}")
TAGS = "a|b|body|br|button|div|em|footer|form|h[1-6]|head|header|html|i|img|input|li|link|meta|nav|ol|p|script|section"
TAG = re.compile(rf"</?(?:{TAGS}|span|strong|style|table|td|th|title|tr|ul)\b[^<>]*>", re.IGNORECASE)
SCRIPT = re.compile(r"<(script|style)\b.*?</\1>", re.IGNORECASE | re.DOTALL)
ADDRESS = re.compile(r"(?:https?://|www\.)\S+")
_LETTER = "0-9A-Za-zÀ-ɏͰ-ӿ\u0590-\u06ff_"  # of scripts with spaces
EMAIL = rf"[{_LETTER}.+-]+@(?!example\.)[{_LETTER}-]+(?:\.[{_LETTER}-]+)+"
# Beside letters of scripts without spaces a number is one of its own.
_BEGIN, _END, _DASH = f"(?<![{_LETTER}.,/-])", f"(?![{_LETTER}/-])", "[ \u2010\u2212\uff0d-]"
_LOCAL = rf"\(?[0０]\d{{1,4}}\)?(?:{_DASH}|/)\d{{2,4}}(?:{_DASH}?\d{{2,4}}){{1,3}}|0\d{{3}}\.\d{{3}}\.\d{{3}}"
PHONE = rf"{_BEGIN}(?:\+\d[\d ()/-]{{7,16}}\d|{_LOCAL}){_END}"
_NUMBERS = r"(?!97[89])(?:\d{3}-\d{2}-\d{4}|\d{6}[- ]?\d{4,7}|[A-Z]{2}\d{2}(?: ?[\dA-Z]{4}){3,7})"
IDENTITY = f"{_BEGIN}{_NUMBERS}{_END}"
PERSONAL = re.compile(f"{EMAIL}|{PHONE}|{IDENTITY}")
SEGMENT = re.compile(r"[^\n.!?。।]+[.!?。।]*\s*")  # a sentence or a line
SEGMENT_BYTES = 25  # of one that counts as recurring; headings are shorter
RECURRING = 0.05  # share of the documents
ALIKE = 0.7  # share of two documents' 5-grams, from which on they are nearly equal
SKETCH, BAND = 20, 4  # MinHash (Broder 1997): equal minima of 4 of 20 orders make a candidate
MULTIPLIERS = np.random.RandomState(0).randint(1, 2**62, SKETCH).astype(np.uint64) * np.uint64(2) + np.uint64(1)
FEW_WORDS = 12  # in shorter documents nothing is counted
PIECE_LETTERS = 2_000  # of the documents that a single one is cut into
SHOWN = 40  # letters of an example


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule that documents break: the share from which on it is a warning, its words, and its change by a sample."""

    share: float
    says: str
    change: Callable[[Sequence[str]], Change]
    of_rows: bool | None = False  # True: of a row of several texts, False: of one text, None: of each text of a row


def _always(change: Change) -> Callable[[Sequence[str]], Change]:
    return lambda _: change


def _decoded(text: str) -> str:
    def original(found: re.Match[str]) -> str:
        try:
            raw = b"".join(letter.encode("latin-1" if letter < "\u0100" else "cp1252") for letter in found[0])
            return raw.decode()
        except UnicodeError:
            return found[0]

    found = DOUBLE_ENCODED.findall(text)
    is_wrong = len(found) * 100 > len(text) or CONTROL.search("".join(found))  # which sound text has nowhere
    return DOUBLE_ENCODED.sub(original, text) if is_wrong else text


def _without_tags(text: str) -> str:
    stripped = text.strip()
    is_whole = TAG.match(stripped) and stripped.endswith(">")
    if not is_whole and len(TAG.findall(text)) * 200 < max(len(text), 600):
        return text
    return html.unescape(re.sub(r"\s{2,}", "\n", TAG.sub(" ", SCRIPT.sub(" ", text)))).strip()


def _composed(text: str) -> str:
    composed = unicodedata.normalize("NFC", text)
    return composed if len(text) - len(composed) > len(text) / 500 else text


def _beside_addresses(text: str) -> str:
    rest = ADDRESS.sub("", text)
    return text if rest == text or len("".join(rest.split())) * 5 >= len("".join(text.split())) else ""


def _unlike_before(_: Sequence[str]) -> Change:
    seen = set[bytes]()

    def change(text: str) -> str:
        digest = hashlib.blake2b(" ".join(text.lower().split()).encode(), digest_size=8).digest()
        before = len(seen)
        seen.add(digest)
        return text if len(seen) > before else ""

    return change


def grams(text: str, size: int) -> np.ndarray:
    """Returns the hash of each run of so many words, uint64 [words - size + 1]; of all words if there are fewer."""
    words = np.array([zlib.crc32(word.encode()) for word in WORD.findall(text.lower())], np.uint64)
    size = min(size, len(words))
    total = np.zeros(len(words) - size + 1, np.uint64)
    for place in range(size):
        total = total * np.uint64(0x9E3779B97F4A7C15) + words[place : len(words) - size + 1 + place]
    return total


def _unlike_nearly(_: Sequence[str]) -> Change:
    bands: dict[tuple[int, bytes], np.ndarray] = {}

    def change(text: str) -> str:
        if len(found := grams(text, 5)) < FEW_WORDS:
            return text
        sketch = (found[:, None] * MULTIPLIERS >> np.uint64(32)).min(axis=0)
        keys = [(place, sketch[place : place + BAND].tobytes()) for place in range(0, SKETCH, BAND)]
        if any((bands[key] == sketch).mean() >= ALIKE for key in keys if key in bands):
            return ""
        bands.update((key, sketch) for key in keys)
        return text

    return change


def _varied(text: str) -> str:
    found = grams(text, 3)
    return "" if len(found) >= 2 * FEW_WORDS and len(np.unique(found)) * 2 < len(found) else text


def _without_recurring(sample: Sequence[str]) -> Change:
    counts = Counter(segment for text in sample for segment in _segments(text))
    least = max(RECURRING * len(sample), 5)
    recurring = {segment for segment, count in counts.items() if count > least}
    return lambda text: (
        SEGMENT.sub(lambda found: "" if found[0].strip() in recurring else found[0], text) if recurring else text
    )


def _segments(text: str) -> set[str]:
    """Returns the parts of a document that may recur in others; a document of one part is repeated, not its part."""
    found = {segment.strip() for segment in SEGMENT.findall(text)}
    return {segment for segment in found if len(segment.encode()) >= SEGMENT_BYTES} if len(found) > 1 else set()


def _without_copies(rows: Sequence[str]) -> Change:
    """Leaves out rows whose texts are equal, unless the others are nearly equal too, as where errors are corrected."""
    others = [[set(WORD.findall(text)) for text in row.split(SEPARATOR)[:2]] for row in rows if not _is_copy(row)]
    if others and statistics.median(len(a & b) / max(len(a | b), 1) for a, b in others) > 0.5:
        return lambda row: row
    return lambda row: "" if _is_copy(row) else row


def _is_copy(row: str) -> bool:
    return len({text.strip() for text in row.split(SEPARATOR)}) == 1


def parts(text: str) -> list[str]:
    """Returns a long text in documents that end at a line or a sentence; see the rule one-document."""
    return re.findall(rf"(?s)\S.{{0,{PIECE_LETTERS}}}?(?:\n|(?<=[.!?])\s|[。।]|\Z)|\S.{{0,{PIECE_LETTERS}}}", text)


ONE_DOCUMENT, EMPTY = "one-document", "empty"  # a text becomes several; what reads it leaves empty ones out
RULES = {  # in this order, each judged on what those before it have left; mojibake has control characters too
    "mojibake": Rule(0.01, "look like UTF-8 that was read in another encoding (Ã© for é)", _always(_decoded), None),
    "control-characters": Rule(0.01, "hold NUL or other control characters",
                               _always(lambda text: CONTROL.sub("", text)), None),
    "undecoded": Rule(0.01, "hold U+FFFD, which a reader puts in the place of bytes that it cannot decode",
                      _always(lambda text: "" if "\ufffd" in text else text), None),
    "markup": Rule(0.05, "are raw HTML", _always(_without_tags), None),
    "decomposed-letters": Rule(0.05, "have letters and their marks apart (NFD)", _always(_composed), None),
    "only-addresses": Rule(0.05, "are addresses of pages, with next to no text", _always(_beside_addresses)),
    "personal-data": Rule(0.1, "hold e-mail addresses, telephone or identity numbers",
                          _always(lambda text: PERSONAL.sub("***", text)), None),
    "copied-targets": Rule(0.1, "have targets that are copies of the inputs", _without_copies, True),
    "repetitive": Rule(0.05, "say the same words again and again", _always(_varied)),
    "duplicates": Rule(0.02, "are repetitions of others, but for spaces and capitals", _unlike_before),
    "recurring-lines": Rule(RECURRING, "have sentences or lines that recur in many", _without_recurring),
    "near-duplicates": Rule(0.05, "are nearly equal to others", _unlike_nearly),
}  # fmt: skip


def change_by(code: str, sample: Sequence[str], num_texts: int) -> Change:
    """Returns a rule's change for rows of so many texts."""
    rule = RULES[code]
    if rule.of_rows is not (num_texts > 1) and rule.of_rows is not None:
        return lambda text: text
    change = rule.change(sample)
    if num_texts == 1 or rule.of_rows:
        return change

    def each(row: str) -> str:
        changed = [change(text) for text in row.split(SEPARATOR)]
        return SEPARATOR.join(changed) if all(text.strip() for text in changed) else ""

    return each


def broken(texts: Sequence[str], num_texts: int) -> Iterator[tuple[str, float, str, list[str]]]:
    """Yields (rule, share of the texts that break it, an example, the texts without what is a warning) of each rule."""
    left = list(texts)
    for code, rule in RULES.items():
        changed = list(map(change_by(code, left, num_texts), left))
        places = [place for place, pair in enumerate(zip(left, changed, strict=True)) if pair[0] != pair[1]]
        share = len(places) / max(len(left), 1)
        example = _changed_at(left[places[0]], changed[places[0]], hidden=code == "personal-data") if places else ""
        left = [text for text in changed if text.strip()] if share >= rule.share else left
        yield code, share, example, left


def _changed_at(before: str, after: str, hidden: bool) -> str:
    pairs = enumerate(zip(before, after, strict=False))
    place = next((place for place, (a, b) in pairs if a != b), min(len(before), len(after)))
    return (after if hidden else before)[max(place - 10, 0) : place + SHOWN]
