"""Restoring diacritics: inputs are text without them, made on the fly from any monolingual corpus.

The letters of a language are those that people often type without their marks. Romanian's s and t have a comma
below; old keyboards had only the cedilla, which is read as a comma.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping

from limba.config import InputError
from limba.data.dataset import TEXT, Dataset, Step, preprocessor
from limba.data.objectives.text_segments import SPACES, segments_of
from limba.data.objectives.token_blocks import Features
from limba.data.vocabulary.vocabularies import Vocabulary

TRANSLITERATIONS = ("letters", "ascii", "unidecode")
# Letters whose name does not spell a plain letter, with what people type instead of them.
NAMED = {
    "SHARP S": "ss", "LONG S": "s", "DOTLESS I": "i", "DOTLESS J": "j", "ETH": "d", "THORN": "th", "ENG": "n",
    "KRA": "q", "WYNN": "w", "YOGH": "gh", "SCHWA": "e", "OPEN E": "e", "OPEN O": "o", "AFRICAN D": "d",
    "TURNED V": "v", "EZH": "z", "ESH": "s", "GAMMA": "g", "IOTA": "i", "UPSILON": "u",
}  # fmt: skip
NAME = re.compile(r"LATIN (SMALL|CAPITAL) (?:LETTER|LIGATURE) (.+?)(?: WITH .+)?")
# Capitals that become two letters, in a word of capitals.
DOUBLED = "ÆŒÞẞǼǢĲ"
IN_CAPITALS = re.compile(f"(?<=[A-ZÀ-Þ])[{DOUBLED}]|[{DOUBLED}](?=[A-ZÀ-Þ])")
QUOTES = {"SINGLE": "'", "DOUBLE": '"', "LEFT-POINTING": '"', "RIGHT-POINTING": '"'}


@functools.cache
def plain(character: str) -> str | None:
    """Returns the ASCII text for one character; None if it has none: another script's, or a rare symbol.

    >>> [plain(letter) for letter in "éßØÞİạ„–…"]
    ['e', 'ss', 'O', 'Th', 'I', 'a', '"', '-', '...']
    >>> plain("я") is None
    True
    """
    if character.isascii():
        return character
    base = "".join(part for part in unicodedata.normalize("NFKD", character) if unicodedata.category(part) != "Mn")
    if base and base.isascii():
        return base
    if len(base) > 1:
        parts = [plain(part) for part in base]
        return None if None in parts else "".join(filter(None, parts))
    name = unicodedata.name(character, "")
    if unicodedata.category(character) == "Pd":
        return "-"
    if name.endswith("APOSTROPHE"):
        return "'"
    if name == "MIDDLE DOT":
        return "."
    if "QUOTATION MARK" in name:
        return next((quote for kind, quote in QUOTES.items() if kind in name), None)
    match = NAME.fullmatch(name)
    if match is None:
        return None
    size, body = match.groups()
    spelled = body.lower() if body.isalpha() and len(body) <= 2 else NAMED.get(body)
    return spelled.title() if spelled and size == "CAPITAL" else spelled


def plain_letters(letters: Iterable[str]) -> dict[str, str]:
    """Returns the plain text of each letter, capitals included; InputError for a letter that has none."""
    plain_forms: dict[str, str] = {}
    for letter in letters:
        for form in dict.fromkeys((letter, letter.upper())):
            if len(form) > 1:
                continue  # a capital that is two characters, such as ß's, is written without the mark already
            text = plain(form)
            if text is None:
                raise InputError(f"The letter {form!r} has no plain form in Unicode; leave it out of the letters.")
            plain_forms[form] = text
    return plain_forms


class _Plain(dict[int, str]):
    """A table for `str.translate` that is filled on use; characters without a plain form stay."""

    def __missing__(self, code: int) -> str:
        self[code] = text = plain(chr(code)) or chr(code)
        return text


def translated(text: str, table: Mapping[int, str]) -> str:
    """Returns `text.translate(table)`, with a capital that becomes two letters as its neighbours are.

    >>> table = {ord(letter): text for letter, text in plain_letters("æ").items()}
    >>> translated("Ærlig", table), translated("ÆRLIG", table)
    ('Aerlig', 'AERLIG')
    """
    return IN_CAPITALS.sub(lambda match: match[0].translate(table).upper(), text).translate(table)


def to_ascii() -> Callable[[str], str]:
    """Returns a function that writes every Latin letter, quotation mark and dash of a text in ASCII.

    >>> to_ascii()("„Blåbærsyltetøy” på Ålesund – “Straße”")
    '"Blabaersyltetoy" pa Alesund - "Strasse"'
    """
    table = _Plain()
    return lambda text: translated(unicodedata.normalize("NFC", text), table)


def unidecode() -> Callable[[str], str]:
    """Returns the function of the package Unidecode; InputError if it is not installed.

    It is under the GPL, so Limba neither brings nor installs it.
    """
    try:
        from unidecode import unidecode  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            "transliterate='unidecode' needs the package Unidecode, which Limba does not install (its licence is the"
            " GPL); run pip install unidecode, or choose 'ascii'."
        ) from None
    return unidecode


LETTERS = {
    "az": "çəğıöşü", "ca": "àçèéíïòóúü", "cs": "áčďéěíňóřšťúůýž", "cy": "âêîôûŵŷ", "da": "æøå", "de": "äöüß",
    "eo": "ĉĝĥĵŝŭ", "es": "áéíñóúü", "et": "äõöüšž", "fi": "äöå", "fo": "áðíóúýæø", "fr": "àâçéèêëîïôùûüÿ",
    "ga": "áéíóú", "hr": "čćđšž", "hu": "áéíóöőúüű", "is": "áðéíóúýþæö", "it": "àèéìíîòóùú", "lt": "ąčęėįšųūž",
    "lv": "āčēģīķļņšūž", "mt": "ċġħż", "nb": "æøå", "nl": "áéëïíóöúü", "nn": "æøå", "no": "æøå", "pl": "ąćęłńóśźż",
    "pt": "áâãàçéêíóôõú", "ro": "ăâîșț", "sk": "áäčďéíĺľňóôŕšťúýž", "sl": "čšž", "sq": "çë", "sv": "åäö",
    "tr": "çğıöşü", "vi": "àáảãạăằắẳẵặâầấẩẫậđèéẻẽẹêềếểễệìíỉĩịòóỏõọôồốổỗộơờớởỡợùúủũụưừứửữựỳýỷỹỵ",
}  # fmt: skip
COMMAS = str.maketrans("ŞşŢţ", "ȘșȚț")  # cedilla to comma
DOTTED_I = {"tr", "az"}  # their small i has the capital İ
WORD = re.compile(r"\w+")


def letters_of(language: str) -> str:
    """Returns a language's small letters with diacritics; InputError for an unknown language."""
    if language not in LETTERS:
        raise InputError(
            f"The diacritics of language {language!r} are not known; choose one of {', '.join(LETTERS)}, or add its"
            " letters to limba.data.objectives.diacritics.LETTERS."
        )
    return LETTERS[language]


@functools.cache
def table(language: str) -> dict[int, str]:
    """Returns a table for `str.translate` from letters with diacritics to plain ones, capitals included.

    Raises InputError for a letter that cannot be written without its diacritics.
    """
    plain_of = plain_letters(letters_of(language))
    return str.maketrans({**plain_of, **({"İ": "I"} if language in DOTTED_I else {})})


def stripper(language: str, transliterate: str = "letters") -> Callable[[str], str]:
    """Returns the function that strips a text: only the language's letters, or all letters, quotes and dashes.

    `transliterate` is 'letters', 'ascii' (by Unicode's data) or 'unidecode' (that package, which is not installed by
    Limba). Raises InputError for another choice, a missing package or an unknown language.
    """
    if transliterate not in TRANSLITERATIONS:
        choices = ", ".join(TRANSLITERATIONS)
        raise InputError(f"transliterate is {transliterate!r}; choose one of {choices}.")
    if transliterate == "letters":
        letters = table(language)
        return lambda text: translated(text, letters)
    return to_ascii() if transliterate == "ascii" else unidecode()


def normalized(text: str, language: str) -> str:
    """Returns the text with each letter as one character, and in Romanian with commas instead of cedillas."""
    text = unicodedata.normalize("NFC", text)
    return text.translate(COMMAS) if language == "ro" else text


def stripped(text: str, language: str, share: float = 1.0, transliterate: str = "letters") -> str:
    """Returns the text without diacritics, or with them removed from a random share of its words.

    The choice of words depends only on the text, so that a stream can be resumed.

    >>> stripped("Țara mea și învățătura ei", "ro")
    'Tara mea si invatatura ei'
    >>> stripped("Größe – „Übermaß“", "de"), stripped("Größe – „Übermaß“", "de", transliterate="ascii")
    ('Grosse – „Ubermass“', 'Grosse - "Ubermass"')
    """
    strip = stripper(language, transliterate)
    if share >= 1.0:
        return strip(text)
    draws = random.Random(hashlib.blake2b(text.encode(), digest_size=8).digest())
    return WORD.sub(lambda word: strip(word[0]) if draws.random() < share else word[0], text)


def segments(text: str, num_bytes: int) -> Iterator[str]:
    """Yields the text's lines in parts of whole words of at most that many bytes; a longer word is a part itself."""
    for line in text.splitlines():
        part: list[str] = []
        size = 0
        for word in line.split():
            length = len(word.encode()) + 1
            if part and size + length > num_bytes + 1:
                yield " ".join(part)
                part = []
                size = 0
            part.append(word)
            size += length
        if part:
            yield " ".join(part)


def restore_diacritics(
    language: str = "ro",
    share: float = 1.0,
    bytes_per_token: float | None = None,
    capitals: bool = False,
    transliterate: str = "letters",
) -> Step:
    """Returns a preprocessor from {"text"} to {"inputs", "targets"}, strings: text without its diacritics, and with.

    With `capitals` the inputs are in capital letters, as old records and telegrams are. `transliterate` as in
    `stripper`: 'ascii' also strips letters of other languages, quotes and dashes from the inputs.
    Documents are cut at spaces into segments. With `bytes_per_token` None they have as many tokens of the task's
    vocabulary as the shorter length holds, so that nothing is truncated; with a number, at most that many bytes for
    each token (1 for bytes).
    Segments without a letter that can have a diacritic are skipped. Raises InputError for an unknown language.

    >>> from limba.data.dataset import Elements
    >>> texts = Elements([{"text": "Știu că vine.".encode()}], {"text": TEXT})
    >>> pair = next(iter(restore_diacritics("ro", bytes_per_token=1)(texts, {"inputs": 64, "targets": 64}, features)))
    >>> pair["inputs"].decode(), pair["targets"].decode()
    ('Stiu ca vine.', 'Știu că vine.')
    """
    strip = stripper(language, transliterate)
    bases = re.compile("|".join(sorted(set(table(language).values()))), re.IGNORECASE)

    def pairs(text: bytes, limit: int, ratio: float | None, vocabulary: Vocabulary | None) -> list[tuple[bytes, bytes]]:
        parts = _segments(normalized(text.decode(), language), limit, ratio, vocabulary, strip)
        parts = [part for part in parts if bases.search(strip(part))]
        plain = [stripped(part, language, share, transliterate) for part in parts]
        inputs = [text.upper() for text in plain] if capitals else plain
        return [(without.encode(), part.encode()) for without, part in zip(inputs, parts, strict=True)]

    return functools.partial(_restore, pairs=pairs, bytes_per_token=bytes_per_token)


@preprocessor
def _restore(
    dataset: Dataset,
    sequence_length: Mapping[str, int] | None = None,
    output_features: Features | None = None,
    *,
    pairs: Callable[..., list[tuple[bytes, bytes]]],
    bytes_per_token: float | None,
) -> Dataset:
    """The preprocessor of `restore_diacritics`, whose choices are the last two arguments."""
    limit = min(sequence_length.values()) - 1 if sequence_length else 512
    vocabulary = None
    if bytes_per_token is None and output_features:
        vocabulary = output_features["targets"].vocabulary
    pairs = functools.partial(pairs, limit=limit, ratio=bytes_per_token, vocabulary=vocabulary)

    others = {name: kind for name, kind in dataset.spec.items() if name != "text"}

    def rows_of(example: Mapping[str, object], number: int) -> list[dict[str, object]]:
        del number
        kept = {name: example[name] for name in others}
        return [{**kept, "inputs": inputs, "targets": targets} for inputs, targets in pairs(example["text"])]

    return dataset.flat_map(rows_of, {**others, "inputs": TEXT, "targets": TEXT})


_restore.long_inputs = "segments"  # pyright: ignore[reportFunctionMemberAccess]
_restore.is_one_text = True  # pyright: ignore[reportFunctionMemberAccess]  inputs and targets are the same text


def _segments(
    text: str, limit: int, ratio: float | None, vocabulary: Vocabulary | None, strip: Callable[[str], str]
) -> Iterator[str]:
    """Yields the segments of a document; of at most `limit` tokens of the vocabulary, if there is one."""
    guess = _bytes_per_token(text, strip, vocabulary) if ratio is None else ratio
    parts = segments(text, max(8, int(limit * guess)))
    if vocabulary is None:
        yield from parts
        return

    def count(part: str) -> int:
        return max(len(vocabulary.encode(part)), len(vocabulary.encode(strip(part))))

    for part in parts:
        if count(part) <= limit:
            yield part
        else:
            yield from (segment.text for segment in segments_of(part, count, limit, SPACES))


def _bytes_per_token(text: str, strip: Callable[[str], str], vocabulary: Vocabulary | None) -> float:
    """Returns the bytes of text that a token spells, of the text or of its stripped form, whichever takes more tokens.

    A tenth is left free, since a segment may have longer spellings than its document.
    """
    if vocabulary is None or not text.strip():
        return 1.0
    return 0.9 * len(text.encode()) / max(len(vocabulary.encode(text)), len(vocabulary.encode(strip(text))), 1)
