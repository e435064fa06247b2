"""Plain letters for letters with marks, from the Unicode Character Database: é -> e, ß -> ss, Þ -> Th, „ -> "."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping

from limba.config import InputError

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
    found: dict[str, str] = {}
    for letter in letters:
        for form in dict.fromkeys((letter, letter.upper())):
            if len(form) > 1:
                continue  # a capital that is two characters, such as ß's, is written without the mark already
            text = plain(form)
            if text is None:
                raise InputError(f"The letter {form!r} has no plain form in Unicode; leave it out of the letters.")
            found[form] = text
    return found


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
