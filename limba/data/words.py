"""What a word is, in every script: for ROUGE, word F1 and error rates, and which of sacrebleu's tokenizers BLEU takes.

A word is what stands between two of Unicode's word boundaries (UAX #29) and has a letter or a digit: marks belong to
their letters, as the vowel signs of Hindi do. In scripts that write no spaces between words, whose words only a
dictionary finds, each character is one, with its marks.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import regex

# Scripts that write no spaces between words, and the mark that makes a vowel of Japanese long, which is of no script.
SPACELESS = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\u30fc\uff70\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
    r"\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}\p{Javanese}\p{Balinese}"
)
USUAL_TOKENIZER = "13a"  # sacrebleu's own default
CHINESE = ("zh", "cmn", "yue", "wuu", "nan", "hak", "gan", "lzh")
SPACELESS_SHARE = 0.2  # of the references' letters, above which BLEU does not cut at spaces: a kanji is half a word
KANA_SHARE = 0.05  # of Chinese characters and kana, above which a text without a language is Japanese

# With the marks that Unicode makes no part of the character before them: the vowel signs of Burmese that stand apart.
_ONE = rf"(?=[{SPACELESS}])\X\p{{M}}*"
_CHARACTER = regex.compile(_ONE, regex.V1)
_PIECE = regex.compile(rf"{_ONE}|(?:(?![{SPACELESS}])\X)+", regex.V1 | regex.DOTALL)
_BOUNDARY = regex.compile(r"\b", regex.V1 | regex.WORD)
_LETTER_OR_DIGIT = regex.compile(r"[\p{L}\p{N}]")
_LETTER = regex.compile(r"\p{L}")
_SPACELESS_LETTER = regex.compile(rf"[{SPACELESS}&&\p{{L}}]", regex.V1)
_HAN = regex.compile(r"[\p{Han}\p{Bopomofo}]")
_KANA = regex.compile(r"[\p{Hiragana}\p{Katakana}]")
_PUNCTUATION = regex.compile(rf"[\p{{P}}{regex.escape(string.punctuation)}]")


def words_of(text: str) -> list[str]:
    """Returns the words of a text, without what stands between them.

    >>> words_of("He can't pay 3.50, OK?"), words_of("किताब है।"), words_of("本を3冊")
    (['He', "can't", 'pay', '3.50', 'OK'], ['किताब', 'है'], ['本', 'を', '3', '冊'])
    """
    words = []
    for piece in _PIECE.findall(text):
        # Unicode's boundaries would cut a character of Khmer or Thai in two.
        words += [piece] if _CHARACTER.match(piece) else _BOUNDARY.split(piece)
    return [word for word in words if _LETTER_OR_DIGIT.search(word)]


def bare_words_of(text: str) -> list[str]:
    """Returns what stands between spaces once the punctuation is removed, as SQuAD's evaluation; see above.

    >>> bare_words_of("It's «well-known».")
    ['Its', 'wellknown']
    """
    return with_spaces(_PUNCTUATION.sub("", text)).split()


def with_spaces(text: str) -> str:
    """Returns a text with spaces around each character of a script that writes none.

    >>> with_spaces("本を two"), with_spaces("one  two")
    ('本 を two', 'one  two')
    """
    if not _CHARACTER.search(text):
        return text
    return " ".join(_CHARACTER.sub(r" \g<0> ", text).split())


def bleu_tokenizer(references: Sequence[str], languages: Sequence[str] = ()) -> str:
    """Returns the name of sacrebleu's tokenizer for some references: 'zh' for Chinese, 'char', or '13a'.

    If at most a fifth of the letters are of a script without spaces, it is 13a, whatever the language. Else it is 'zh'
    if Chinese is the one language of `languages` that such scripts write, or if none is and there are hardly any kana;
    else 'char'.

    >>> bleu_tokenizer(["私は本を買いました。"]), bleu_tokenizer(["我买了一本书。"]), bleu_tokenizer(["I bought it."])
    ('char', 'zh', '13a')
    >>> bleu_tokenizer(["東京大学"]), bleu_tokenizer(["東京大学"], ["ja"]), bleu_tokenizer(["Tokyo"], ["ja"])
    ('zh', 'char', '13a')
    """
    text = "".join(references)
    num_letters = len(_LETTER.findall(text))
    num_spaceless = len(_SPACELESS_LETTER.findall(text))
    if num_spaceless <= SPACELESS_SHARE * num_letters:
        return USUAL_TOKENIZER
    num_han = len(_HAN.findall(text))
    num_kana = len(_KANA.findall(text))
    if 2 * (num_han + num_kana) < num_spaceless:
        return "char"  # Thai, Khmer, …
    codes = {language.partition("-")[0].lower() for language in languages}
    if "ja" in codes or "jpn" in codes:
        # A run from Chinese to Japanese names both: then the kana decide.
        is_chinese = not codes.isdisjoint(CHINESE) and num_kana <= KANA_SHARE * (num_han + num_kana)
    elif not codes.isdisjoint(CHINESE):
        is_chinese = True
    else:
        is_chinese = num_kana <= KANA_SHARE * (num_han + num_kana)
    return "zh" if is_chinese else "char"
