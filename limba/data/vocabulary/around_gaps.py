"""The ids of a text with gaps: what stands around a gap is cut as training cut it, in the middle of a text.

Span corruption tokenizes a whole text and puts a sentinel in the place of some tokens. The space before a gap is part
of the word that is gone, and what follows a gap is no beginning of a text: no space is put before it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import sentencepiece

from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.vocabularies import SentencePieceVocabulary, Vocabulary, parse_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "\u2581"  # SentencePiece's character for a space
MARK = "\U000f1d9e"  # of private use: it stands for a gap while SentencePiece cuts the text


def encode_parts(vocabulary: Vocabulary, parts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each part of a text; between two parts there is a gap.

    >>> from limba.data.vocabulary.vocabularies import ByteVocabulary
    >>> encode_parts(ByteVocabulary(), ["a ", ", b"])
    [[100, 35], [47, 35, 101]]
    """
    if len(parts) > 1 and isinstance(vocabulary, SentencePieceVocabulary):
        return _by_sentencepiece(vocabulary, parts)
    if len(parts) > 1 and isinstance(vocabulary, TokenizersVocabulary):
        return _by_tokenizers(vocabulary.tokenizer, parts)
    # Of bytes the space before a gap is an id of its own, and stays.
    return [list(vocabulary.encode(part)) for part in parts]


class _Marked(NamedTuple):
    """A SentencePiece model in which MARK is a piece, and what it does with spaces."""

    encode: Callable[[str], list[int]]
    mark: int  # the id of MARK
    space: int  # the id of a space alone
    ends_pieces: bool  # spaces stand at the end of pieces
    has_single_spaces: bool  # several spaces become one


@functools.lru_cache(maxsize=8)
def _marked(tokenizer: sentencepiece.SentencePieceProcessor) -> _Marked:
    model = parse_model(tokenizer.serialized_model_proto())
    model.pieces.add(piece=MARK, score=0.0, type=model.SentencePiece.USER_DEFINED)
    with_mark = sentencepiece.SentencePieceProcessor()
    with_mark.LoadFromSerializedProto(model.SerializeToString())
    rules = model.normalizer_spec
    return _Marked(
        encode=with_mark.EncodeAsIds,
        mark=len(model.pieces) - 1,
        space=tokenizer.PieceToId(SPACE if rules.escape_whitespaces else " "),
        ends_pieces=model.trainer_spec.treat_whitespace_as_suffix,
        has_single_spaces=rules.remove_extra_whitespaces,
    )


def _by_sentencepiece(vocabulary: Any, parts: Sequence[str]) -> list[list[int]]:
    marked = _marked(vocabulary.tokenizer)
    if marked.ends_pieces:
        texts = [part.removeprefix(" ") if number else part for number, part in enumerate(parts)]
    else:
        texts = _without_space_before_gaps(parts)
    found: list[list[int]] = [[]]
    for number in marked.encode(MARK.join(texts)):
        if number == marked.mark:
            found.append([])
        else:
            found[-1].append(number)
    if len(found) != len(parts):  # of a model of whole words, in which a mark is no piece
        return [list(vocabulary.encode(part)) for part in parts]
    # A space alone beside a gap is that of the word which is gone: the one that is put before a text, or after it
    # where spaces end pieces, and of several spaces what is left of them.
    beside = found[1:] if marked.ends_pieces else found[:-1]
    outer = parts[-1] if marked.ends_pieces else parts[0]
    for ids in beside:
        edge = 0 if marked.ends_pieces else -1
        is_outer = ids is beside[edge if marked.ends_pieces else 0] and not outer.strip()
        if ids[edge:][:1] == [marked.space] and (marked.has_single_spaces or is_outer):
            del ids[edge]
    return found


def _without_space_before_gaps(parts: Sequence[str]) -> list[str]:
    return [*(part.removesuffix(" ") for part in parts[:-1]), parts[-1]]


def _by_tokenizers(tokenizer: Tokenizer, parts: Sequence[str]) -> list[list[int]]:
    within = _within_a_text(tokenizer.to_str())
    found = []
    for number, part in enumerate(_without_space_before_gaps(parts)):
        # A part that begins with a space gets no other one from a tokenizer that puts one before a text.
        is_within = number > 0 and not part.startswith(" ")
        cut = within if is_within else tokenizer
        found.append(cut.encode(part, add_special_tokens=False).ids)
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
