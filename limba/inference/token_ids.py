"""The token ids of a text as a model reads it, writes it, or continues it."""

from __future__ import annotations

import re

import numpy as np

from limba.config import InputError
from limba.data.vocabulary.around_gaps import encode_parts
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.sentinels import sentinel_ids
from limba.data.vocabulary.special_ids import SpecialIds
from limba.data.vocabulary.vocabularies import Vocabulary

SENTINEL = re.compile(r"<extra_id_(\d+)>")


def input_ids(text: str, vocabulary: Vocabulary, special: SpecialIds, length: int | None = None) -> np.ndarray:
    """Returns a text's ids as a T5 reads them, int32 [<= length]: in the template, with the end of sequence."""
    return np.asarray(special.framed(text_ids(text, vocabulary), length), np.int32)


def target_ids(
    text: str,
    vocabulary: Vocabulary,
    special: SpecialIds,
    length: int | None = None,
    ends: bool = True,
    follows: bool = False,
) -> np.ndarray:
    """Returns a text's ids as a model writes them, int32 [<= length], with the end of sequence if `ends`.

    With `follows` they go on with what a language model has read.
    """
    return np.asarray(special.target(text_ids(text, vocabulary), length, ends, follows), np.int32)


def prompt_ids(text: str, vocabulary: Vocabulary, special: SpecialIds) -> np.ndarray:
    """Returns a prompt's ids as a language model reads them, int32 [L]: in the template, which has a start or none.

    One that learned pairs reads an input and its end, as in its rows. An empty prompt without a start is the start
    alone, as in transformers. Raises InputError for a model without one.
    """
    ids = special.prompt(list(vocabulary.encode(text)))
    if not ids:
        ids = [_start_of(special)]
    return np.asarray(ids, np.int32)


def read_before(text: str, vocabulary: Vocabulary, special: SpecialIds) -> np.ndarray:
    """Returns what a language model has read before a target that is scored.

    That is `prompt_ids` without the end of a template, in which the target would follow a whole text.
    """
    ids = special.prompt(list(vocabulary.encode(text)), ends=False)
    if not ids:
        ids = [_start_of(special)]
    return np.asarray(ids, np.int32)


def text_ids(text: str, vocabulary: Vocabulary) -> list[int]:
    """Returns a text's ids without the ids around it, such as the end of sequence.

    <extra_id_0> and so on become sentinels, and the text beside them is tokenized as in span corruption. A folder for
    transformers has a tokenizer of its own, which reads the name of any special token as that token. Raises InputError
    for a sentinel that a vocabulary of Limba lacks.
    """
    if isinstance(vocabulary, PublishedVocabulary):
        return list(vocabulary.encode(text))
    parts = SENTINEL.split(text)  # odd ones are the numbers of the regular expression's group
    gaps = [int(number) for number in parts[1::2]]
    sentinels = sentinel_ids(vocabulary, 1 + max(gaps, default=-1))
    first, *others = encode_parts(vocabulary, parts[::2])
    ids = list(first)
    for gap, part in zip(gaps, others, strict=True):
        ids.append(sentinels[gap])
        ids += part
    return ids


def _start_of(special: SpecialIds) -> int:
    if special.start is None:
        raise InputError(
            "The prompt is empty, and the model has no token that a text begins with (bos_token_id); give a prompt."
        )
    return special.start
