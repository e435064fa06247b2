"""The ids of a text with gaps: what stands around a gap is cut as training cut it, in the middle of a text.

Span corruption tokenizes a whole text and puts a sentinel in the place of some tokens. The space before a gap is part
of the word that is gone, and what follows a gap is no beginning of a text: no space is put before it.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import sentencepiece

from limba.config import InputError
from limba.data.vocabulary.load import SENTINEL
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.vocabularies import SentencePieceVocabulary, Vocabulary, parse_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

SPACE = "\u2581"  # SentencePiece's character for a space
MARK = "\U000f1d9e"  # of private use: it stands for a gap while SentencePiece cuts the text
NAME = "<limba_gap_d9e7>"  # stands for a gap while a tokenizer.json cuts the text; no normalizer changes it
WHITE = "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"  # what WhitespaceSplit cuts at

Json = dict[str, Any]


def encode_parts(vocabulary: Vocabulary, parts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each part of a text; between two parts there is a gap.

    >>> from limba.data.vocabulary.vocabularies import ByteVocabulary
    >>> encode_parts(ByteVocabulary(), ["a ", ", b"])
    [[100, 35], [47, 35, 101]]
    """
    if len(parts) > 1 and isinstance(vocabulary, SentencePieceVocabulary):
        return _by_sentencepiece(vocabulary, parts)
    if len(parts) > 1 and isinstance(vocabulary, TokenizersVocabulary):
        return _by_tokenizers(vocabulary, parts)
    # Of bytes the space before a gap is an id of its own, and stays.
    return [list(vocabulary.encode(part)) for part in parts]


class _Marked(NamedTuple):
    """A SentencePiece model in which MARK is a piece, and what it does with spaces."""

    encode: Callable[[str], list[int]]
    mark: int  # the id of MARK
    space: int  # the id of a space alone
    ends_pieces: bool  # spaces stand at the end of pieces
    has_single_spaces: bool  # several spaces become one
    mark_of_space: str  # what a space is in a normalized text
    normalize: Callable[[str], str]


@functools.lru_cache(maxsize=8)
def _marked(tokenizer: sentencepiece.SentencePieceProcessor) -> _Marked:
    model = parse_model(tokenizer.serialized_model_proto())
    model.pieces.add(piece=MARK, score=0.0, type=model.SentencePiece.USER_DEFINED)
    with_mark = sentencepiece.SentencePieceProcessor()
    with_mark.LoadFromSerializedProto(model.SerializeToString())
    rules = model.normalizer_spec
    mark_of_space = SPACE if rules.escape_whitespaces else " "
    return _Marked(
        encode=with_mark.EncodeAsIds,
        mark=len(model.pieces) - 1,
        space=tokenizer.PieceToId(mark_of_space),
        ends_pieces=model.trainer_spec.treat_whitespace_as_suffix,
        has_single_spaces=rules.remove_extra_whitespaces,
        mark_of_space=mark_of_space,
        normalize=tokenizer.Normalize,
    )


def _by_sentencepiece(vocabulary: Any, parts: Sequence[str]) -> list[list[int]]:
    marked = _marked(vocabulary.tokenizer)
    if marked.ends_pieces:
        texts = [part.removeprefix(" ") if number else part for number, part in enumerate(parts)]
    else:
        texts = [_without_space_at_end(marked, part, number == 0) for number, part in enumerate(parts[:-1])]
        texts.append(parts[-1])
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
    if marked.ends_pieces:
        for ids in found[1:]:
            is_last_and_empty = ids is found[-1] and not texts[-1].strip()
            if ids[:1] == [marked.space] and (marked.has_single_spaces or is_last_and_empty):
                del ids[0]
    elif not texts[0] and found[0] == [marked.space]:
        del found[0][0]
    return found


def _without_space_at_end(marked: _Marked, part: str, is_first: bool) -> str:
    """Returns a part without the space before a gap.

    What is a space the model's own rules say: they may make one of a line end, or of several, and U+2581 is one too.
    """
    before = "" if is_first else "a"
    normalized = marked.normalize(f"{before}{part}a")
    is_there = normalized.endswith(f"{marked.mark_of_space}a")
    while part and is_there:
        part = part[:-1]
        is_there = marked.normalize(f"{before}{part}a") == normalized
    return part


def _by_tokenizers(vocabulary: TokenizersVocabulary, parts: Sequence[str]) -> list[list[int]]:
    text = NAME.join(parts)
    if text.count(NAME) != len(parts) - 1:
        raise InputError(f"The text {text[:60]!r} … holds {NAME}, which stands for a gap in Limba; take it out.")
    marked = _with_a_gap(vocabulary.tokenizer.to_str())
    gap = marked.token_to_id(NAME)
    found: list[list[int]] = [[]]
    for number in marked.encode(text, add_special_tokens=False).ids:
        if number == gap:
            found.append([])
        else:
            found[-1].append(number)
    return found


@functools.lru_cache(maxsize=8)
def _with_a_gap(state: str) -> Tokenizer:
    """Returns the tokenizer of a file's text in which NAME is a gap, and names of special tokens are plain text."""
    from tokenizers import AddedToken, Tokenizer

    made = Tokenizer.from_str(state)
    reason = reason_against(made)
    if reason is not None:
        logger.warning("The tokenizer %s: other ids than in training.", reason)
    made.add_tokens([AddedToken(NAME, special=False, normalized=True)])
    made = with_gaps(made, [NAME])
    made.encode_special_tokens = True
    return made


def with_gaps(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """Returns a copy of a tokenizer.json's tokenizer that cuts what stands around these added tokens as training does.

    Their names are found in the text after it was normalized, so that a step of the normalizer can remove the space
    before a gap, one and nothing else, and can put a space before a whole text, which a pre-tokenizer would put before
    what follows a gap too.
    """
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.to_str())
    if not names:
        return Tokenizer.from_str(json.dumps(state))
    if tokenizer.normalizer is not None:  # behind a letter, so that nothing is put before a name
        letter = tokenizer.normalizer.normalize_str("x")
        names = [*names, *(tokenizer.normalizer.normalize_str(f"x{name}").removeprefix(letter) for name in names)]
    for token in state["added_tokens"]:
        if token["content"] in names:
            token |= {"normalized": True, "lstrip": False, "rstrip": False, "single_word": False}
        elif state["normalizer"] is None:
            token["normalized"] = False  # has no part in the steps that are new
    gap = pattern_of(names)
    steps = _flat(state["pre_tokenizer"], "pretokenizers")
    first: list[Json] = []  # what the normalizer does for the pre-tokenizer's first steps
    if _are_marked_words(steps):
        # The same by one space between two words, and one before the first.
        mark = re.escape(steps[1]["replacement"])
        first = [
            _replace(f"{WHITE}+(?={gap}|{mark}|\\z)", ""),
            _replace(f"\\A{WHITE}+", ""),
            _replace(f"{WHITE}+", " "),
        ]
        steps = steps[1:]
    if steps and _puts_mark(steps[0]):
        mark = steps[0]["replacement"]
        first += _before_text(mark, f"{gap}|[ {mark}]")
        steps[0] = {**steps[0], "prepend_scheme": "never"}
    elif steps and steps[0]["type"] == "ByteLevel" and steps[0]["add_prefix_space"]:
        first += _before_text(" ", f"{gap}| ")
        steps[0] = {**steps[0], "add_prefix_space": False}
    # Only now is a space before a gap the only one, if the normalizer makes one of several, or a mark.
    spaces = f"[ {SPACE}]" if SPACE in json.dumps([state["normalizer"], steps], ensure_ascii=False) else "[ ]"
    normalizers: list[Json] = []
    for step in _flat(state["normalizer"], "normalizers"):
        if _removes_space(step, gap):
            continue  # of a file that was exported before
        normalizers += _before_no_gap(step, gap)
    state["normalizer"] = {
        "type": "Sequence",
        "normalizers": [*normalizers, _replace(f"{spaces}(?={gap})", ""), *first],
    }
    if steps:
        state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps} if len(steps) > 1 else steps[0]
    return Tokenizer.from_str(json.dumps(state))


def reason_against(tokenizer: Tokenizer) -> str | None:
    """Returns why what follows a gap cannot be cut as in training, in words; None if it can be."""
    steps = _flat(json.loads(tokenizer.to_str())["pre_tokenizer"], "pretokenizers")
    later = steps[2:] if _are_marked_words(steps) else steps[1:]
    if any(_puts_mark(step) or step.get("add_prefix_space") for step in later):
        return "puts a space before each part of a text that its first steps make, so also before what follows a gap"
    return None


def pattern_of(names: Iterable[str]) -> str:
    """Returns a regular expression for these names."""
    patterns = ("<extra_id_[0-9]+>" if SENTINEL.fullmatch(name) else re.escape(name) for name in names)
    return f"(?:{'|'.join(dict.fromkeys(patterns))})"


def _flat(step: Json | None, name: str) -> list[Json]:
    """Returns the steps of a normalizer or pre-tokenizer of a tokenizer.json in their order."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    found: list[Json] = []
    for inner in step[name]:
        found += _flat(inner, name)
    return found


def _puts_mark(step: Json) -> bool:
    """Returns whether a pre-tokenizer's step puts its mark before each part of a text that it gets."""
    return step["type"] == "Metaspace" and step.get("prepend_scheme", "always") == "always"


def _are_marked_words(steps: Sequence[Json]) -> bool:
    """Returns whether the steps make T5's words: what stands between white space, each after a mark."""
    if len(steps) < 2 or steps[0]["type"] != "WhitespaceSplit":
        return False
    return _puts_mark(steps[1]) and steps[1].get("split", True)


def _replace(pattern: str, content: str) -> Json:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _before_text(content: str, unless: str) -> list[Json]:
    """Returns the steps that put this before a text that does not begin with what `unless` matches."""
    # A Replace that inserts it at once gives offsets at which the library's next step panics.
    return [{"type": "Prepend", "prepend": content}, _replace(f"\\A{re.escape(content)}(?={unless})", "")]


def _removes_space(step: Json, gap: str) -> bool:
    """Returns whether a normalizer's step is the one that removes the space before a gap."""
    return step["type"] == "Replace" and str(step["pattern"].get("Regex")).endswith(f"](?={gap})")


def _before_no_gap(step: Json, gap: str) -> list[Json]:
    """Returns a normalizer's step, and after one that puts something before a text what takes it from a gap again."""
    return _before_text(step["prepend"], gap) if step["type"] == "Prepend" else [step]
