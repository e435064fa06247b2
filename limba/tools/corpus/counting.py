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

    `made` is how many ids a vocabulary of the sample has, which may be fewer than were asked for.
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

    If a text has more letters than that many ids can spell, its vocabulary gets as many ids as it needs. A sample of a
    larger text is counted on the tenth that the vocabulary has not seen. The function raises InputError for text of
    which no vocabulary can be made.
    """
    is_whole = sum(map(len, documents)) < SMALL
    if is_whole:
        training = documents
        counted = documents
    else:
        training = [text for number, text in enumerate(documents) if number % 10]
        counted = documents[::10]

    @functools.cache
    def count(ids: int) -> Counted:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/sample.model"
            try:
                with _without_warnings():
                    NewVocabulary(path).train(training, ids - SENTINELS[kind])
            except InputError:
                if ids >= 64_000:  # sizes.MOST_IDS: more letters than any vocabulary of a proposal can spell
                    raise
                return count(2 * ids)
            # The sentinels of a T5 are added as its run loads the file.
            made = PieceTable.at(path, SENTINELS[kind]).vocabulary.vocab_size
            return with_vocabulary(path, counted)._replace(ids=ids, made=made)

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
    pieces = PieceTable.at(path)
    num_bytes = sum(map(len, documents))
    num_tokens = sum(len(pieces.encode(text)) for text in documents)
    return Counted(pieces.vocabulary.vocab_size, num_tokens / num_bytes, num_bytes)


def _languages() -> ModuleType:
    """Returns preflight's module that tells scripts."""
    module = find_tool("languages")
    assert module is not None  # it is shipped with this one
    return module


def has_spaces(documents: Sequence[bytes]) -> bool:
    """Returns whether spaces stand between words: words of most languages have 4 to 10 letters on average.

    >>> has_spaces(["Ære være de som leser".encode()]), has_spaces(["吾輩は猫である。名前はまだ無い。どこで".encode()])
    (True, False)
    """
    text = "\n".join(document.decode() for document in documents[:2000])
    words = text.split()
    languages = _languages()
    if sum(map(len, words)) > LONG_WORD * len(words):
        return False
    # The words between spaces may be short on average, and the text still Japanese with many commands in it.
    num_words = languages.words_by_script(text[:MOST_LETTERS])
    spaceless = sum(num_words.get(script, 0.0) for script in languages.LETTERS_A_WORD)
    return spaceless <= SPACELESS * sum(num_words.values())


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
    num_words = languages.words_by_script(text)
    if languages.script_of(text) == "HIRAGANA":  # Chinese letters beside kana are Japanese
        num_words["HIRAGANA"] = num_words.get("HIRAGANA", 0.0) + num_words.pop("CJK", 0.0)
    # 々, which repeats the letter before it, has a script of its own in Python.
    num_words["CJK"] = num_words.get("CJK", 0.0) + num_words.pop("IDEOGRAPHIC", 0.0)
    total = sum(num_words.values())
    for code in codes.split(","):
        scripts = _scripts_of(code.strip())
        if scripts and 2 * sum(num_words.get(script, 0.0) for script in scripts) < total:
            most = max(num_words, key=num_words.__getitem__).capitalize()
            raise InputError(
                f"--language={code} is not the text's: most of its letters are {most}, outside code and markup; give"
                " its own code."
            )


def _scripts_of(code: str) -> list[str]:
    """Returns the scripts in which a language is nearly always written; [] where SCRIPTS does not say."""
    for scripts, codes in SCRIPTS.items():
        if code in codes.split():
            return scripts.split()
    return []
