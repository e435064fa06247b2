"""How many tokens a text has: counted on a sample of it, with the vocabulary that its run will train, or has."""

from __future__ import annotations

import contextlib
import functools
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import NamedTuple

from limba.api import NewVocabulary, PieceTable, Texts, find_tool, source_of_files
from limba.config import InputError

SAMPLE_BYTES = 1 << 23  # of text that is counted; the vocabulary is trained on nine tenths of it
SMALL = 0.9 * SAMPLE_BYTES  # bytes of a text that is trained on and counted as a whole, as its run will do
SENTINELS = {"t5": 100, "lm": 0, "encoder": 1}
LONG_WORD = 16  # letters; what is longer on average are clauses or sentences
SPACELESS = 0.25  # share of words in scripts without spaces, from which on sentences are what is trained on
MOST_LETTERS = 100_000  # that are looked at for their script
# What Python calls the scripts, and languages that are nearly always written in them.
SCRIPTS = {
    "LATIN": "af ca cs cy da de en es et eu fi fo fr fy ga gl hr hu id is it la lb lt lv ms mt nb nl nn no oc pl pt rm"
    " ro se sk sl so sq sv sw tl tr vi xh yo zu",
    "CYRILLIC": "be bg mk ru uk", "GREEK": "el", "ARABIC": "ar fa ps ur", "HEBREW": "he yi", "DEVANAGARI": "hi mr ne",
    "BENGALI": "as bn", "TAMIL": "ta", "TELUGU": "te", "THAI": "th", "GEORGIAN": "ka", "ARMENIAN": "hy",
    "ETHIOPIC": "am ti", "HANGUL": "ko", "HIRAGANA KATAKANA": "ja", "CJK": "zh",
}  # fmt: skip


class Counted(NamedTuple):
    """A vocabulary's ids, and the tokens that it makes of a byte of the text.

    `made` are the ids that one of a sample has, which may be fewer than those that were asked for.
    """

    ids: int
    tokens_per_byte: float
    sample: int  # bytes of text that were counted
    made: int = 0


def sampled(corpus: str, column: str | None) -> list[bytes]:
    """Returns documents of a corpus, all equally likely, SAMPLE_BYTES at most; InputError for none."""
    texts = Texts(source_of_files(corpus, column or "text"))
    documents = texts.in_columns(texts.sample("train", SAMPLE_BYTES)[0])
    if not documents:
        raise InputError(f"No text of {corpus} can be sampled: its training split is empty; give more documents.")
    return documents


def counter(documents: Sequence[bytes], kind: str) -> Callable[[int], Counted]:
    """Returns a function from a vocabulary's ids to what it makes of the documents; each is trained once.

    Of a text with more letters than that many ids can spell, the vocabulary has as many ids as it needs. A sample of a
    larger text is counted on the tenth that the vocabulary has not seen. The function raises InputError for text of
    which no vocabulary can be made.
    """
    is_whole = sum(map(len, documents)) < SMALL
    training = documents if is_whole else [text for place, text in enumerate(documents) if place % 10]
    counted = documents if is_whole else documents[::10]

    @functools.cache
    def count(ids: int) -> Counted:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/sample.model"
            try:
                with _without_warnings():
                    NewVocabulary(path).train(training, ids - SENTINELS[kind])
            except InputError:
                if ids >= 64_000:
                    raise
                return count(2 * ids)
            found = with_vocabulary(path, counted)
            # The sentinels of a T5 are added as its run loads the file.
            return found._replace(ids=ids, made=PieceTable.at(path, SENTINELS[kind]).vocabulary.vocab_size)

    return count


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keeps the trainer's warnings from the console: a proposal says in its own words how many ids it found."""
    logger = logging.getLogger("limba.data.vocabulary")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def with_vocabulary(path: str, documents: Sequence[bytes]) -> Counted:
    """Returns what the vocabulary at a path, or 'byte', makes of the documents; InputError if it cannot be read."""
    pieces, size = PieceTable.at(path), sum(map(len, documents))
    return Counted(pieces.vocabulary.vocab_size, sum(len(pieces.encode(text)) for text in documents) / size, size)


def _languages() -> ModuleType:
    """Returns the module that tells scripts, that of preflight."""
    found = find_tool("languages")
    assert found is not None  # it is shipped with this one
    return found


def has_spaces(documents: Sequence[bytes]) -> bool:
    """Returns whether spaces stand between words: those of most languages have 4 to 10 letters on average.

    >>> has_spaces(["Ære være de som leser".encode()]), has_spaces(["吾輩は猫である。名前はまだ無い。どこで".encode()])
    (True, False)
    """
    text = "\n".join(document.decode() for document in documents[:2000])
    words = text.split()
    languages = _languages()
    found = languages.words_by_script(text[:MOST_LETTERS])
    spaceless = sum(found.get(script, 0.0) for script in languages.LETTERS_A_WORD)
    # Commands with spaces among Japanese sentences do not cut these.
    return sum(map(len, words)) <= LONG_WORD * len(words) and spaceless <= SPACELESS * sum(found.values())


def is_language_of(name: str, documents: Sequence[bytes]) -> bool:
    """Returns whether a run's name is the code of a language, in whose script the text is.

    >>> is_language_of("nb", ["Ære være".encode()]), is_language_of("nb", ["Слава".encode()])
    (True, False)
    """
    if not any(name in languages.split() for languages in SCRIPTS.values()):
        return False
    try:
        check_language(name, documents)
    except InputError:
        return False
    return True


def check_language(codes: str, documents: Sequence[bytes]) -> None:
    """Raises InputError if most words are of another script than a language that has one of its own.

    Code, markup and addresses do not count, and letters of scripts without spaces as words have them
    (`words_by_script`).

    >>> check_language("nb", ["Ære være".encode()])
    >>> check_language("ja", ["`sudo apt-get install limba` を実行すると、limba-0.2 が入ります。".encode()])
    >>> check_language("ru", [b"Latin letters"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    limba.config.errors.InputError: --language=ru is not the text's: most of its letters are Latin, outside code and...
    """
    text = "\n".join(document.decode() for document in documents[:2000])[:MOST_LETTERS]
    languages = _languages()
    found = languages.words_by_script(text)
    if languages.script_of(text) == "HIRAGANA":  # Chinese letters beside kana are Japanese
        found["HIRAGANA"] = found.get("HIRAGANA", 0.0) + found.pop("CJK", 0.0)
    found["CJK"] = found.get("CJK", 0.0) + found.pop("IDEOGRAPHIC", 0.0)  # the sign for a letter again
    total = sum(found.values())
    for code in codes.split(","):
        own = next((scripts for scripts, languages in SCRIPTS.items() if code.strip() in languages.split()), None)
        if own and sum(found.get(script, 0.0) for script in own.split()) * 2 < total:
            most = max(found, key=found.__getitem__).capitalize()
            raise InputError(
                f"--language={code} is not the text's: most of its letters are {most}, outside code and markup; give"
                " its own code."
            )
