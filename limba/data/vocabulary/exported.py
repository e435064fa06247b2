"""The texts that an exported tokenizer has to cut as the vocabulary of the training cuts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from limba.data.vocabulary.around_gaps import encode_parts
from limba.data.vocabulary.load import PieceTable, num_sentinels, sentinel_ids
from limba.data.vocabulary.vocabularies import SentencePieceVocabulary, Vocabulary, parse_model

Encode = Callable[[str], Sequence[int]]  # a text's ids, with nothing before and after it

SYMBOLS = 20  # of a vocabulary's user-defined symbols, the first ones
TEXTS = (
    "",
    " ",
    "The quick brown fox jumps over the lazy dog.",
    "Toate ființele umane se nasc libere și egale în demnitate și în drepturi.",
    "Усі люди народжуються вільними і рівними у своїй гідності та правах.",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "人人生而自由,在尊严和权利上一律平等。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता है।",
    "มนุษย์ทั้งหลายเกิดมามีอิสระ",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι.",
    " one space before, one after ",
    "   three before, three after   ",
    "two  spaces,   three",
    "a line\nanother line",
    "two line ends\n\nand one at the end\n",
    "\nat the start",
    "a space and a line end \n and spaces",
    "of Windows\r\nand\rof others",
    "a\ttab, \t tabs \t",
    "1234567890 3.14 1,000 50% 2026-11-28",
    "UPPER lower MiXeD ÄÖÜ ß İ",
    "ﬁ ligature, Ⅷ, ½, ①, ｆｕｌｌ, ㎏, …",
    "café, cafe\u0301",
    "no\u00a0break, thin\u2009space, zero\u200bwidth, \u3000wide",
    "emoji 😀 👩‍👩‍👧 🇩🇪 and more",
    "\ufeffa byte order mark",
    "quotes “ ” ‘ ’ « » — – -",
    "def f(x):\n    return x + 1  # code\n",
    "<b>markup</b> &amp; <0x41> <0xE3>",
    "https://example.org/a?b=c_d#e",
    "x" * 40,
    "word" * 12,
    "SentencePiece's own \u2581 character",
    "\x01control \x02 characters",
    "①begins with a sign that changes",
    "!?.,;:()[]{}",
)
GAPS = (
    ("it has ", ", signs"),
    ("the end ", "."),
    ("", " begins with a gap"),
    ("", ", begins with a sign"),
    ("ends with ", ""),
    ("in a wo", "rd, and a sp", " ace"),
    ("one ", " ", " three"),
    ("Привет, ", "! И ", "."),
    ("これは", "です。", ""),
    ("one line\nand ", "\nanother"),
    ("two spaces  ", "  before and after"),
)


def texts_for(vocabulary: Vocabulary) -> Iterator[str]:
    """Yields TEXTS, and some with the vocabulary's own user-defined symbols."""
    yield from TEXTS
    for symbol in symbols_of(vocabulary)[:SYMBOLS]:
        yield f"{symbol}at the start, in{symbol}between, with {symbol} spaces, twice{symbol}{symbol} at the end {symbol}"
        yield symbol


def symbols_of(vocabulary: Vocabulary) -> list[str]:
    """Returns the user-defined symbols of a SentencePiece model, without sentinels."""
    if not isinstance(vocabulary, SentencePieceVocabulary):
        return []
    model = parse_model(vocabulary.tokenizer.serialized_model_proto())
    table = PieceTable(vocabulary)
    sentinels = {table.name(number) for number in table.sentinels}
    of_user = (piece.piece for piece in model.pieces if piece.type == model.SentencePiece.USER_DEFINED)
    return [piece for piece in of_user if piece not in sentinels]


def keeps_spaces(vocabulary: Vocabulary) -> bool:
    """Returns whether several spaces stay several."""
    if not isinstance(vocabulary, SentencePieceVocabulary):
        return True
    return not parse_model(vocabulary.tokenizer.serialized_model_proto()).normalizer_spec.remove_extra_whitespaces


def differences(vocabulary: Vocabulary, encode: Encode, has_gaps: bool) -> list[tuple[str, list[int], list[int]]]:
    """Returns the texts that `encode` cuts otherwise than the vocabulary: each with the vocabulary's ids, and its own.

    With `has_gaps` texts with <extra_id_0> are compared too, which are what training makes of a text with a gap. A
    vocabulary that keeps several spaces has none of them before a gap here: the exported token takes them all.
    """
    found = []
    for text in texts_for(vocabulary):
        wanted = [int(number) for number in vocabulary.encode(text)]
        given = [int(number) for number in encode(text)]
        if wanted != given:
            found.append((text, wanted, given))
    for parts in GAPS if has_gaps else ():
        if len(parts) - 1 > num_sentinels(vocabulary):
            continue
        if "  " in parts[0] and keeps_spaces(vocabulary):
            continue
        text, wanted = with_gaps(vocabulary, parts)
        given = [int(number) for number in encode(text)]
        if wanted != given:
            found.append((text, wanted, given))
    return found


def with_gaps(vocabulary: Vocabulary, parts: Sequence[str]) -> tuple[str, list[int]]:
    """Returns a text with <extra_id_0>, … between its parts, and its ids."""
    sentinels = sentinel_ids(vocabulary, len(parts) - 1)
    text, ids = "", []
    for number, (part, of_part) in enumerate(zip(parts, encode_parts(vocabulary, parts), strict=True)):
        if number:
            text += f"<extra_id_{number - 1}>"
            ids.append(sentinels[number - 1])
        text += part
        ids += of_part
    return text, ids
