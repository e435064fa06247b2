"""The scripts of a text, by its words, and whether a language is written in them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from limba.tools.preflight.checks.markup import SCRIPT, TAG

FEW_WORDS = 12  # shorter documents are not counted
LETTERS = 4_000  # at the beginning of a document, by which its script is judged
# Scripts without spaces between words, and letters of a word of theirs: words of Japanese and Chinese have some 2 on
# average, words in Thai, Lao, Khmer and Burmese some 4. In other scripts spaces say what a word is.
LETTERS_A_WORD = {
    "CJK": 2.0,
    "IDEOGRAPHIC": 2.0,
    "HIRAGANA": 2.0,
    "KATAKANA": 2.0,
    "THAI": 4.0,
    "LAO": 4.0,
    "KHMER": 4.0,
    "MYANMAR": 4.0,
}
# The languages that are written in a script, the most usual one first; scripts as Unicode's names of letters begin.
LANGUAGES = {
    "CYRILLIC": "ru uk bg sr mk be kk ky mn tg tt",
    "ARABIC": "ar fa ur ps ckb",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "zh ja",
    "HANGUL": "ko",
    "DEVANAGARI": "hi mr ne",
    "BENGALI": "bn as",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "GREEK": "el",
    "HEBREW": "he yi",
    "GEORGIAN": "ka",
    "ARMENIAN": "hy",
    "LATIN": "en ca cs da de es fi fr hr hu id it kk nb nl pl pt ro sr sv tr vi",
}
SCRIPTS = {script: languages.split() for script, languages in LANGUAGES.items()}
WORD = re.compile(r"[^\W\d_][\w'’\u0300-\u036f\u0900-\u109f]*")  # a letter, then letters, marks and apostrophes
ADDRESS = re.compile(r"(?:https?://|www\.)\S+")
FENCED = re.compile(r"(```|~~~).*?(?:\1|\Z)|`[^`\n]+`", re.DOTALL)
# A command, a path, a name in a program, a number: ASCII without spaces, with a sign that words do not have.
CODE = re.compile(r"(?<![!-~])[!-~]*[\w.\-]*[_/\\=<>{}\[\]|$#@*&~^+%0-9][!-~]*|(?<![!-~])--?[a-z][!-~]*")


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
    words: dict[str, float] = {}
    for word in WORD.findall(without_code(text)):
        scripts = Counter(_script(letter) for letter in word if letter.isalpha())
        # Letters of scripts with spaces: together they are one word, of which each script has its letters' share.
        num_spaced = scripts.total() - sum(scripts[name] for name in LETTERS_A_WORD)
        for script, letters in scripts.items():
            letters_a_word = LETTERS_A_WORD.get(script, num_spaced)
            words[script] = words.get(script, 0.0) + letters / letters_a_word
    return words


def _script(letter: str) -> str:
    """Returns the script of a letter, as its name begins: KATAKANA of the sign for long vowels too."""
    return re.split("[ -]", unicodedata.name(letter, ""), maxsplit=1)[0]


def script_of(text: str) -> str:
    """Returns the script of most words, of Japanese HIRAGANA; "" for a text without words.

    >>> script_of("apt-get install limba を実行すると、パッケージが入ります。"), script_of("limba train nb.gin")
    ('HIRAGANA', 'LATIN')
    """
    words = words_by_script(text)
    kana = words.get("HIRAGANA", 0.0) + words.get("KATAKANA", 0.0)
    japanese = kana + words.get("CJK", 0.0) + words.get("IDEOGRAPHIC", 0.0)
    if 10 * kana > japanese:  # a tenth of kana tells Japanese from Chinese, which has none
        words |= {"HIRAGANA": japanese, "KATAKANA": 0.0, "CJK": 0.0, "IDEOGRAPHIC": 0.0}
    script = max(words, key=lambda name: words[name], default="")
    if not script or not words[script]:
        return ""
    return script


def other_scripts(texts: Sequence[str], codes: Sequence[str]) -> Counter[str]:
    """Returns the scripts of the documents in no script of these languages, which are ISO 639's codes.

    Documents of fewer than FEW_WORDS words are not counted; none is, where the script of one of the languages is not
    known.

    >>> other_scripts(["梅雨は、東アジアの広い範囲においてみられる気象現象である。"], ["zh"])
    Counter({'HIRAGANA': 1})
    >>> other_scripts(["A text of some words in Latin letters, which a language that nobody knows may have."], ["xx"])
    Counter()
    """
    wanted = {code.lower().replace("_", "-").partition("-")[0] for code in codes}
    known = set().union(*SCRIPTS.values())
    if not wanted <= known:
        return Counter()
    scripts = {script for script, languages in SCRIPTS.items() if wanted.intersection(languages)}
    others = Counter[str]()
    for text in texts:
        beginning = text[:LETTERS]
        if sum(words_by_script(beginning).values()) < FEW_WORDS:
            continue
        script = script_of(beginning)
        if script in SCRIPTS and script not in scripts:
            others[script] += 1
    return others
