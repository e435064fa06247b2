"""The ids of a text with gaps: what stands around a gap is cut as training cut it, in the middle of a text.

Span corruption tokenizes a whole text and puts a sentinel in the place of some tokens. The space before a gap is part
of the word that is gone, and what follows a gap is no beginning of a text: no space is put before it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import sentencepiece

from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary, parse_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "\u2581"  # SentencePiece's character for a space
MARK = "\U000f1d9e"  # of private use: it stands for a gap while SentencePiece cuts the text


def encode_parts(vocabulary: Vocabulary, parts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each part of a text; between two parts there is a gap.

    >>> encode_parts(ByteVocabulary(), ["a ", ", b"])
    [[100, 35], [47, 35, 101]]
    """
    if len(parts) == 1:
        return [list(vocabulary.encode(parts[0]))] if parts[0].strip() else [[]]
    if isinstance(vocabulary, ByteVocabulary):  # the space before a gap is an id of its own, and stays
        return [list(vocabulary.encode(part)) if part.strip() else [] for part in parts]
    if isinstance(vocabulary, SentencePieceVocabulary):
        return _by_sentencepiece(vocabulary, parts)
    if isinstance(vocabulary, TokenizersVocabulary):
        return _by_tokenizers(vocabulary.tokenizer, parts)
    return [list(vocabulary.encode(part)) if part.strip() else [] for part in parts]


def _by_sentencepiece(vocabulary: Any, parts: Sequence[str]) -> list[list[int]]:
    encode, mark, is_suffix = _with_mark(vocabulary.tokenizer)
    text = MARK.join(_without_the_gaps_space(parts, is_suffix))
    found: list[list[int]] = [[]]
    for number in encode(text):
        if number == mark:
            found.append([])
        else:
            found[-1].append(number)
    if len(found) != len(parts):  # of a model of whole words, in which a mark is no piece
        return [list(vocabulary.encode(part)) if part.strip() else [] for part in parts]
    # The space that is put before a text belongs to its first word, which is gone where the text begins with a gap.
    # Where it is put after a text, and the text ends with a gap, likewise.
    lone = vocabulary.tokenizer.PieceToId(SPACE)
    edge = -1 if is_suffix else 0
    if not parts[edge].strip() and found[edge] == [lone]:
        found[edge] = []
    return found


def _without_the_gaps_space(parts: Sequence[str], is_suffix: bool) -> list[str]:
    """Returns the parts without one space before each gap, or after it where pieces end with their space."""
    last = len(parts) - 1
    if is_suffix:
        return [part.removeprefix(" ") if number else part for number, part in enumerate(parts)]
    return [part.removesuffix(" ") if number < last else part for number, part in enumerate(parts)]


@functools.lru_cache(maxsize=8)
def _with_mark(tokenizer: sentencepiece.SentencePieceProcessor) -> tuple[Callable[[str], list[int]], int, bool]:
    """Returns (a function from a text to ids in which MARK is a piece, its id, whether spaces end pieces)."""
    model = parse_model(tokenizer.serialized_model_proto())
    model.pieces.add(piece=MARK, score=0.0, type=model.SentencePiece.USER_DEFINED)
    with_mark = sentencepiece.SentencePieceProcessor()
    with_mark.LoadFromSerializedProto(model.SerializeToString())
    return with_mark.EncodeAsIds, len(model.pieces) - 1, model.trainer_spec.treat_whitespace_as_suffix


def _by_tokenizers(tokenizer: Tokenizer, parts: Sequence[str]) -> list[list[int]]:
    within = _within_a_text(tokenizer.to_str())
    found = []
    for number, part in enumerate(_without_the_gaps_space(parts, is_suffix=False)):
        # A part that begins with a space gets no other one from a tokenizer that puts one before a text.
        is_within = number and not part[:1].isspace()
        cut = within if is_within else tokenizer
        found.append(cut.encode(part, add_special_tokens=False).ids if part.strip() else [])
    return found


@functools.lru_cache(maxsize=8)
def _within_a_text(state: str) -> Tokenizer:
    """Returns a tokenizer, given as its file's text, that puts no space before a text."""
    import tokenizers

    about = json.loads(state)
    for name in ("normalizer", "pre_tokenizer"):
        about[name] = _without_prefix(about.get(name))
    made = tokenizers.Tokenizer.from_str(json.dumps(about))
    made.encode_special_tokens = True
    return made


def _without_prefix(step: Any) -> Any:
    """Returns a normalizer or pre-tokenizer of a tokenizer.json without what puts a space before a text."""
    if not isinstance(step, dict):
        return step
    kind = step.get("type")
    if kind == "Sequence":
        name = "normalizers" if "normalizers" in step else "pretokenizers"
        inner = [_without_prefix(each) for each in step[name]]
        return {**step, name: [each for each in inner if each is not None]}
    if kind == "Prepend":
        return None
    if kind == "Metaspace":
        return {**step, "prepend_scheme": "never"}
    if kind == "ByteLevel":
        return {**step, "add_prefix_space": False}
    return step
