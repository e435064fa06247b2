"""The language of a text against the one that its run names: by its script, and by stop words of some languages."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from limba.tools.preflight.texts.faults import FEW_WORDS, WORD

LETTERS = 400  # of a document, whose script is looked at
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
    words = WORD.findall(text[: 10 * LETTERS].lower())
    if len(words) < FEW_WORDS:
        return None
    found = Counter(unicodedata.name(letter, "").partition(" ")[0] for letter in text[:LETTERS] if letter.isalpha())
    script = next((name for name, _ in found.most_common(1)), "")
    if 10 * (found["HIRAGANA"] + found["KATAKANA"]) > found.total():  # beside as many Chinese letters
        script = "HIRAGANA"
    if script != "LATIN":
        is_other = scripts and script in SCRIPTS and script not in scripts
        return SCRIPTS[script].split()[0] if is_other else None
    hits = {language: sum(word in stops for word in words) for language, stops in STOP_WORDS.items()}
    of_own = max((hits[code] for code in own if code in hits), default=0)
    choices = hits if scripts is not None else {"en": hits["en"]}
    best = max(choices, key=choices.__getitem__)
    return best if best not in own and hits[best] > max(2 * of_own, len(words) // 8) else None
