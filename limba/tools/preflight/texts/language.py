"""The language of a text against the one that its run names: by its script, and by stop words of some languages."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from limba.tools.preflight.texts.faults import ADDRESS, FEW_WORDS, SCRIPT, TAG, WORD

LETTERS = 400  # of a document, whose script is looked at
# Scripts without spaces between words, and letters of a word of theirs: words of Japanese and Chinese have some 2 on
# average, those of Thai, Lao, Khmer and Burmese some 4. In other scripts spaces say what a word is.
LETTERS_A_WORD = {
    "CJK": 2.0, "IDEOGRAPHIC": 2.0, "HIRAGANA": 2.0, "KATAKANA": 2.0,
    "THAI": 4.0, "LAO": 4.0, "KHMER": 4.0, "MYANMAR": 4.0,
}  # fmt: skip
FENCED = re.compile(r"(```|~~~).*?(?:\1|\Z)|`[^`\n]+`", re.DOTALL)
# A command, a path, a name in a program, a number: ASCII without spaces, with a sign that words do not have.
CODE = re.compile(r"(?<![!-~])[!-~]*[\w.\-]*[_/\\=<>{}\[\]|$#@*&~^+%0-9][!-~]*|(?<![!-~])--?[a-z][!-~]*")
_STOP_WORDS = """
ca els les que amb una per del és dels aquest; cs se je že na jako ale byl pro který jsou
da og det er som på ikke af en til der; de der die und das ist nicht ein mit den von
en the of and to in is that for with was; es el los las que del una por con para es
fi ja on ei että oli se hän mutta kun myös; fr le la les des et est une dans pour que
hr je se na da su koji nije što kao biti; hu az és hogy nem egy volt is meg csak azt
id yang dan di dengan untuk ini dari tidak dalam adalah; it il che di della per non una sono gli del
nb og det er som på ikke for av en til; nl het een van de en dat niet is op voor
pl się nie na jest że do to jak przez oraz; pt os as que não uma do da em para com
ro și în de care este la pe nu cu din; sv och att det är som en på inte för av
tr ve bir bu için ile da olarak daha olan çok; vi và của là có được trong không cho một người
"""
STOP_WORDS = {words[0]: set(words[1:]) for words in map(str.split, re.split("[;\n]", _STOP_WORDS.strip()))}
SCRIPTS = {  # by Unicode's names; the first language of each is the most usual
    "CYRILLIC": "ru uk bg sr mk be kk ky mn tg tt", "ARABIC": "ar fa ur ps ckb", "HIRAGANA": "ja", "KATAKANA": "ja",
    "CJK": "zh ja", "HANGUL": "ko", "DEVANAGARI": "hi mr ne", "BENGALI": "bn as", "TAMIL": "ta", "TELUGU": "te",
    "THAI": "th", "GREEK": "el", "HEBREW": "he yi", "GEORGIAN": "ka", "ARMENIAN": "hy",
    "LATIN": f"sr kk {' '.join(STOP_WORDS)}",
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


def other_languages(texts: Sequence[str], codes: Sequence[str]) -> Counter[str]:
    """Returns the languages of the documents that are in none of these, by ISO 639's codes; FEW_WORDS are needed.

    A script that `codes` are not written in counts as its most usual language; nothing does for languages of unknown
    scripts, and for those without stop words here only English does.

    >>> other_languages(["The end of the road that was built for the use of all, and with it the end."], ["nb"])
    Counter({'en': 1})
    >>> other_languages(["梅雨は、東アジアの広い範囲においてみられる気象現象である。"], ["zh"])
    Counter({'ja': 1})
    """
    own = {code.lower().replace("_", "-").partition("-")[0] for code in codes}
    scripts = {script for script, languages in SCRIPTS.items() if own & set(languages.split())}
    known = {language for languages in SCRIPTS.values() for language in languages.split()}
    return Counter(filter(None, (_other(text, own, scripts if own <= known else None) for text in texts)))


def _other(text: str, own: set[str], scripts: set[str] | None) -> str | None:
    beginning = without_code(text[: 10 * LETTERS])
    words = WORD.findall(beginning.lower())
    if len(words) < FEW_WORDS:
        return None
    script = script_of(beginning)
    if script != "LATIN":
        is_other = scripts and script in SCRIPTS and script not in scripts
        return SCRIPTS[script].split()[0] if is_other else None
    hits = {language: sum(word in stops for word in words) for language, stops in STOP_WORDS.items()}
    of_own = max((hits[code] for code in own if code in hits), default=0)
    choices = hits if scripts is not None else {"en": hits["en"]}
    best = max(choices, key=choices.__getitem__)
    return best if best not in own and hits[best] > max(2 * of_own, len(words) // 8) else None
