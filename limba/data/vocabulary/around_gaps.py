"""The ids of a text with gaps, tokenized around each gap as in training: as the middle of a text.

Span corruption tokenizes a whole text and replaces some tokens by a sentinel. The space before a gap belongs to the
word that was removed, and what follows a gap does not begin a text: no space is put before it.
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
from limba.data.vocabulary.sentinels import SENTINEL
from limba.data.vocabulary.tokenizers import SPACE, TokenizersVocabulary, ids_of
from limba.data.vocabulary.vocabularies import SentencePieceVocabulary, Vocabulary, parse_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

MARK = "\U000f1d9e"  # a private-use character that stands for a gap while SentencePiece tokenizes the text
NAME = "<limba_gap_d9e7>"  # stands for a gap while a tokenizer.json tokenizes the text; no normalizer changes it
WHITE_SPACE = "[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"  # where WhitespaceSplit splits

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
    # Among bytes, the space before a gap is an id of its own, and stays.
    return [list(vocabulary.encode(part)) for part in parts]


class _Marked(NamedTuple):
    """A SentencePiece model in which MARK is a piece, and what it does with spaces."""

    encode: Callable[[str], list[int]]
    mark: int  # the id of MARK
    space: int  # the id of a space alone
    ends_pieces: bool  # spaces end pieces
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
        texts = [parts[0], *(part.removeprefix(" ") for part in parts[1:])]
    else:
        before_gaps = [_without_space_at_end(marked, part, number == 0) for number, part in enumerate(parts[:-1])]
        texts = [*before_gaps, parts[-1]]
    ids_of_parts = _split_at(marked.encode(MARK.join(texts)), marked.mark)
    if len(ids_of_parts) != len(parts):  # a model of whole words, in which MARK is not a piece by itself
        return [list(vocabulary.encode(part)) for part in parts]
    # A space alone beside a gap belongs to the removed word: SentencePiece puts it before a text, or after it where
    # spaces end pieces, or it remains of several spaces.
    if marked.ends_pieces:
        for ids in ids_of_parts[1:]:
            is_last_and_empty = ids is ids_of_parts[-1] and not texts[-1].strip()
            if ids[:1] == [marked.space] and (marked.has_single_spaces or is_last_and_empty):
                del ids[0]
    elif not texts[0] and ids_of_parts[0] == [marked.space]:
        del ids_of_parts[0][0]
    return ids_of_parts


def _split_at(ids: Iterable[int], gap: int) -> list[list[int]]:
    """Returns the ids between the gaps, one list more than there are gaps."""
    parts: list[list[int]] = [[]]
    for number in ids:
        if number == gap:
            parts.append([])
        else:
            parts[-1].append(number)
    return parts


def _without_space_at_end(marked: _Marked, part: str, is_first: bool) -> str:
    """Returns a part without the space before a gap.

    The model's own rules say what a space is: they may make one space of a line end or of several spaces, and U+2581
    is a space too. So characters are removed as long as the normalized text stays the same.
    """
    before = "" if is_first else "a"
    normalized = marked.normalize(f"{before}{part}a")
    ends_with_space = normalized.endswith(f"{marked.mark_of_space}a")
    while part and ends_with_space:
        part = part[:-1]
        ends_with_space = marked.normalize(f"{before}{part}a") == normalized
    return part


def _by_tokenizers(vocabulary: TokenizersVocabulary, parts: Sequence[str]) -> list[list[int]]:
    text = NAME.join(parts)
    if text.count(NAME) != len(parts) - 1:
        raise InputError(f"The text {text[:60]!r} … holds {NAME}, which stands for a gap in Limba; remove it.")
    marked = _with_a_gap(vocabulary.tokenizer.to_str())
    gap = marked.token_to_id(NAME)
    assert gap is not None, "_with_a_gap has added it"
    ids_of_parts = _split_at(ids_of(marked, text, vocabulary.path), gap)
    return [list(vocabulary.without_roles(ids)) for ids in ids_of_parts]


@functools.lru_cache(maxsize=8)
def _with_a_gap(state: str) -> Tokenizer:
    """Returns the tokenizer of a file's text in which NAME is a gap, and names of special tokens are plain text."""
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer.from_str(state)
    reason = reason_against(tokenizer)
    if reason is not None:
        logger.warning("The tokenizer %s, so the ids around a gap differ from those in training.", reason)
    tokenizer.add_tokens([AddedToken(NAME, special=False, normalized=True)])
    tokenizer = with_gaps(tokenizer, [NAME])
    tokenizer.encode_special_tokens = True
    return tokenizer


def with_gaps(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """Returns a copy of a tokenizer.json's tokenizer that tokenizes around these added tokens as training does.

    Their names are looked for in the normalized text. So a step of the normalizer can remove the space before a gap,
    one and nothing else, and can put a space before a whole text; a pre-tokenizer would also put one before what
    follows a gap.
    """
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.to_str())
    if not names:
        return Tokenizer.from_str(json.dumps(state))
    if tokenizer.normalizer is not None:
        # As they are in a normalized text: after a letter, so that nothing is put before a name.
        letter = tokenizer.normalizer.normalize_str("x")
        normalized = [tokenizer.normalizer.normalize_str(f"x{name}").removeprefix(letter) for name in names]
        names = [*names, *normalized]
    for token in state["added_tokens"]:
        if token["content"] in names:
            token |= {"normalized": True, "lstrip": False, "rstrip": False, "single_word": False}
        elif state["normalizer"] is None:
            token["normalized"] = False  # the steps that are added here do not concern it
    gap = pattern_of(names)
    steps, before_words = _split_for_gaps(_flat(state["pre_tokenizer"], "pretokenizers"), gap)
    normalizers: list[Json] = []
    for step in _flat(state["normalizer"], "normalizers"):
        if not _removes_space(step, gap):  # a file that was exported before has this step already
            normalizers += _before_no_gap(step, gap)
    has_marks = SPACE in json.dumps([state["normalizer"], steps], ensure_ascii=False)
    space = f"[ {SPACE}]" if has_marks else "[ ]"
    # After the file's own steps: they may make one space of several, or a mark of it.
    without_space_before_gap = _replace(f"{space}(?={gap})", "")
    state["normalizer"] = {"type": "Sequence", "normalizers": [*normalizers, without_space_before_gap, *before_words]}
    if steps:
        state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps} if len(steps) > 1 else steps[0]
    return Tokenizer.from_str(json.dumps(state))


def _split_for_gaps(steps: list[Json], gap: str) -> tuple[list[Json], list[Json]]:
    """Returns the pre-tokenizer's steps without what they put before a text, and the normalizer's steps that do it."""
    normalizers: list[Json] = []
    if _are_marked_words(steps):
        # The same without WhitespaceSplit: one space between two words, and none before the first.
        mark = re.escape(steps[1]["replacement"])
        normalizers = [
            _replace(f"{WHITE_SPACE}+(?={gap}|{mark}|\\z)", ""),
            _replace(f"\\A{WHITE_SPACE}+", ""),
            _replace(f"{WHITE_SPACE}+", " "),
        ]
        steps = steps[1:]
    if not steps:
        return steps, normalizers
    first, *rest = steps
    if _puts_mark(first):
        mark = first["replacement"]
        normalizers += _before_text(mark, f"{gap}|[ {mark}]")
        first = {**first, "prepend_scheme": "never"}
    elif first["type"] == "ByteLevel" and first["add_prefix_space"]:
        normalizers += _before_text(" ", f"{gap}| ")
        first = {**first, "add_prefix_space": False}
    return [first, *rest], normalizers


def reason_against(tokenizer: Tokenizer) -> str | None:
    """Returns why what follows a gap cannot be tokenized as in training, in words; None if it can be."""
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
    steps: list[Json] = []
    for inner in step[name]:
        steps += _flat(inner, name)
    return steps


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
    """Returns the steps that put `content` before a text that does not begin with what `unless` matches."""
    # Two steps: a Replace that inserts it at once gives offsets at which the library's next step panics.
    return [{"type": "Prepend", "prepend": content}, _replace(f"\\A{re.escape(content)}(?={unless})", "")]


def _removes_space(step: Json, gap: str) -> bool:
    """Returns whether a normalizer's step is the one that removes the space before a gap."""
    return step["type"] == "Replace" and str(step["pattern"].get("Regex")).endswith(f"](?={gap})")


def _before_no_gap(step: Json, gap: str) -> list[Json]:
    """Returns a normalizer's step; a step that puts something before a text is followed by its removal before a gap."""
    if step["type"] == "Prepend":
        return _before_text(step["prepend"], gap)
    return [step]
