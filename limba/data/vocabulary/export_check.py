"""Checks that an exported tokenizer gives the same ids as the vocabulary in training, on texts of many kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from limba.config import InputError
from limba.data.vocabulary.around_gaps import encode_parts
from limba.data.vocabulary.piece_table import PieceTable
from limba.data.vocabulary.sentinels import num_sentinels, sentinel_ids
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.vocabularies import SentencePieceVocabulary, Vocabulary, parse_model

Encode = Callable[[str], Sequence[int]]  # a text's ids, with nothing before and after it
Gap = tuple[str, int]  # how a text has it, and its id

MOST_SYMBOLS = 20  # of a vocabulary's user-defined symbols, the first ones
MOST_IDS = 12  # that a sentence shows
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
    "\u2581at the start, \u2581\u2581 and at the end \u2581",
    "\u2581\u0301 with an accent",
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
    ("a line end\n", "word, a tab\t", "\tword"),
    ("\n", " begins with a line end"),
    ("no\u00a0break \u3000", "and \u2581", "\u2581 its own space"),
)


def texts_for(vocabulary: Vocabulary, gaps: Sequence[Gap]) -> Iterator[str]:
    """Yields TEXTS, and texts with the vocabulary's user-defined symbols, except for one that stands for a gap."""
    yield from TEXTS
    names_of_gaps = [name for name, _ in gaps]
    symbols = [symbol for symbol in symbols_of(vocabulary) if symbol not in names_of_gaps]
    for symbol in symbols[:MOST_SYMBOLS]:
        yield f"{symbol}at the start, in{symbol}between, with {symbol} spaces, x{symbol}{symbol}, at the end {symbol}"
        yield symbol
        if isinstance(vocabulary, TokenizersVocabulary):  # which finds its tokens in two rounds, by their `normalized`
            yield " ".join(f"{symbol}{other}" for other in symbols[:MOST_SYMBOLS])


def symbols_of(vocabulary: Vocabulary) -> list[str]:
    """Returns the user-defined symbols of a vocabulary, without sentinels: each is always one token of a text."""
    if isinstance(vocabulary, TokenizersVocabulary):
        added = vocabulary.tokenizer.get_added_tokens_decoder().values()
        return [token.content for token in added if not token.special]
    if not isinstance(vocabulary, SentencePieceVocabulary):
        return []
    model = parse_model(vocabulary.tokenizer.serialized_model_proto())
    table = PieceTable(vocabulary)
    sentinels = {table.name(number) for number in table.sentinels}
    of_user = (piece.piece for piece in model.pieces if piece.type == model.SentencePiece.USER_DEFINED)
    return [piece for piece in of_user if piece not in sentinels]


class Difference(NamedTuple):
    """A text that has other ids in the exported tokenizer."""

    text: str
    trained: list[int]
    exported: list[int]


def sentinels_of(vocabulary: Vocabulary) -> list[Gap]:
    """Returns the first sentinels, as many as GAPS have."""
    count = min(num_sentinels(vocabulary), max(map(len, GAPS)) - 1)
    return [(f"<extra_id_{number}>", id_) for number, id_ in enumerate(sentinel_ids(vocabulary, count))]


def differences(vocabulary: Vocabulary, encode: Encode, gaps: Sequence[Gap]) -> list[Difference]:
    """Returns the texts for which `encode` gives other ids than the vocabulary.

    `gaps` fill the first gap of a text, the second one, …: texts with up to that many gaps are
    compared too, with the ids that training makes of them.
    """
    differing = []
    for text, trained in _texts_with_ids(vocabulary, gaps):
        exported = [int(number) for number in encode(text)]
        if trained != exported:
            differing.append(Difference(text, trained, exported))
    return differing


def num_texts(vocabulary: Vocabulary, gaps: Sequence[Gap]) -> int:
    """Returns how many texts `differences` compares."""
    return sum(1 for _ in _texts_with_ids(vocabulary, gaps))


def _texts_with_ids(vocabulary: Vocabulary, gaps: Sequence[Gap]) -> Iterator[tuple[str, list[int]]]:
    """Yields the texts with their ids in training."""
    for text in texts_for(vocabulary, gaps):
        yield text, [int(number) for number in vocabulary.encode(text)]
    for parts in GAPS:
        if len(parts) - 1 > len(gaps):
            continue
        text = ""
        ids = []
        for number, (part, ids_of_part) in enumerate(zip(parts, encode_parts(vocabulary, parts), strict=True)):
            if number:
                name, id_ = gaps[number - 1]
                text += name
                ids.append(id_)
            text += part
            ids += ids_of_part
        yield text, ids


def check_written(vocabulary: Vocabulary, encode: Encode, gaps: Sequence[Gap], address: str) -> None:
    """Raises InputError if the written tokenizer gives a text other ids than the vocabulary at `address`."""
    differing = differences(vocabulary, encode, gaps)
    if differing:
        raise InputError(
            f"The vocabulary {address} cannot be exported: {in_words(differing[0])}, so a tokenizer.json would not read"
            f" text as the model learned it ({len(differing)} of {num_texts(vocabulary, gaps)} texts differ); train"
            " another vocabulary, in T5's layout, or write the weights without a tokenizer."
        )


def in_words(difference: Difference) -> str:
    """Returns a difference as a part of a sentence."""
    text, trained, exported = difference
    return f"{text[:60]!r} has the ids {_few(trained)} in training and {_few(exported)} in the exported folder"


def _few(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:MOST_IDS]))
    return f"[{shown}, …]" if len(ids) > MOST_IDS else f"[{shown}]"
