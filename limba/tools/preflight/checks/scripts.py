"""The scripts of a text, by its words, and whether a language is written in them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from limba.tools.preflight.checks.markup import SCRIPT, TAG

FEW_WORDS = 12  # in shorter documents nothing is counted
LETTERS = 4_000  # of a document, whose script is looked at
# Scripts without spaces between words, and letters of a word of theirs: words of Japanese and Chinese have some 2 on
# average, those of Thai, Lao, Khmer and Burmese some 4. In other scripts spaces say what a word is.
LETTERS_A_WORD = {
    "CJK": 2.0, "IDEOGRAPHIC": 2.0, "HIRAGANA": 2.0, "KATAKANA": 2.0,
    "THAI": 4.0, "LAO": 4.0, "KHMER": 4.0, "MYANMAR": 4.0,
}  # fmt: skip
ADDRESS = re.compile(r"(?:https?://|www\.)\S+")
FENCED = re.compile(r"(```|~~~).*?(?:\1|\Z)|`[^`\n]+`", re.DOTALL)
# A command, a path, a name in a program, a number: ASCII without spaces, with a sign that words do not have.
CODE = re.compile(r"(?<![!-~])[!-~]*[\w.\-]*[_/\\=<>{}\[\]|$#@*&~^+%0-9][!-~]*|(?<![!-~])--?[a-z][!-~]*")
SCRIPTS = {  # the languages that are written in a script, by Unicode's names; the first one is the most usual
    "CYRILLIC": "ru uk bg sr mk be kk ky mn tg tt", "ARABIC": "ar fa ur ps ckb", "HIRAGANA": "ja", "KATAKANA": "ja",
    "CJK": "zh ja", "HANGUL": "ko", "DEVANAGARI": "hi mr ne", "BENGALI": "bn as", "TAMIL": "ta", "TELUGU": "te",
    "THAI": "th", "GREEK": "el", "HEBREW": "he yi", "GEORGIAN": "ka", "ARMENIAN": "hy",
    "LATIN": "en ca cs da de es fi fr hr hu id it kk nb nl pl pt ro sr sv tr vi",
}  # fmt: skip


def without_code(text: str) -> str:
    """Returns the text without code, markup and addresses.

    >>> without_code("<p>Install it by `apt-get install limba`: see http://x.org/y.</p>").split()
    ['Install', 'it', 'by', ':', 'see']
    """
    for pattern in (FENCED, SCRIPT, TAG, ADDRESS, CODE):
        text = pattern.sub(" ", text)
    return text


def words_by_script(text: str) -> dict[str, float]:
    """Returns the words of each script, by Unicode's names, outside code and markup; of scripts without spaces, about.

    >>> words_by_script("Limba は言語モデルを学習する")
    {'LATIN': 1.0, 'HIRAGANA': 2.0, 'CJK': 2.0, 'KATAKANA': 1.5}
    """
    found: dict[str, float] = {}
    for word in WORD_OF_A_SCRIPT.findall(without_code(text)):
        scripts = Counter(_script(letter) for letter in word if letter.isalpha())
        spaced = scripts.total() - sum(scripts[name] for name in LETTERS_A_WORD)
        for script, letters in scripts.items():
            each = LETTERS_A_WORD.get(script)
            # A word in which scripts with spaces are mixed is one word, by its letters.
            found[script] = found.get(script, 0.0) + letters / (each or spaced)
    return found


WORD_OF_A_SCRIPT = re.compile(r"[^\W\d_][\w'’\u0300-\u036f\u0900-\u109f]*")


def _script(letter: str) -> str:
    """Returns the script of a letter, as its name begins: KATAKANA of the sign for long vowels too."""
    return re.split("[ -]", unicodedata.name(letter, ""), maxsplit=1)[0]


def script_of(text: str) -> str:
    """Returns the script of most words, of Japanese HIRAGANA; "" for a text without words.

    >>> script_of("apt-get install limba を実行すると、パッケージが入ります。"), script_of("limba train nb.gin")
    ('HIRAGANA', 'LATIN')
    """
    found = words_by_script(text)
    kana = found.get("HIRAGANA", 0.0) + found.get("KATAKANA", 0.0)
    japanese = kana + found.get("CJK", 0.0) + found.get("IDEOGRAPHIC", 0.0)
    if 10 * kana > japanese:  # beside as many Chinese letters
        found |= {"HIRAGANA": japanese, "KATAKANA": 0.0, "CJK": 0.0, "IDEOGRAPHIC": 0.0}
    best, count = max(found.items(), key=lambda each: each[1], default=("", 0.0))
    return best if count else ""


def other_scripts(texts: Sequence[str], codes: Sequence[str]) -> Counter[str]:
    """Returns the scripts of the documents in which none of these languages is written, by ISO 639's codes.

    Documents of fewer than FEW_WORDS words are not counted, and none is where the script of a language is not known.

    >>> other_scripts(["梅雨は、東アジアの広い範囲においてみられる気象現象である。"], ["zh"])
    Counter({'HIRAGANA': 1})
    >>> other_scripts(["A text of some words in Latin letters, which a language that nobody knows may have."], ["xx"])
    Counter()
    """
    own = {code.lower().replace("_", "-").partition("-")[0] for code in codes}
    known = {language for languages in SCRIPTS.values() for language in languages.split()}
    if not own <= known:
        return Counter()
    scripts = {script for script, languages in SCRIPTS.items() if own & set(languages.split())}
    found = Counter[str]()
    for text in texts:
        beginning = text[:LETTERS]
        if sum(words_by_script(beginning).values()) < FEW_WORDS:
            continue
        script = script_of(beginning)
        if script in SCRIPTS and script not in scripts:
            found[script] += 1
    return found
