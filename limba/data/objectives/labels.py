"""Labeled texts, from which an encoder with a head of its own learns: classes, tags of words, scores, pairs of texts.

An element is {"inputs": text, "targets": label} until it is tokenized. A sentence with tags is its words and its tags,
with a space between two; a no-break space stands in place of a space inside of a word, as CoNLL-U has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from limba.config import InputError
from limba.data.dataset import TOKENS, Dataset, preprocessor
from limba.data.objectives.token_blocks import Features
from limba.data.vocabulary.load import encoder, has_dummy_space, piece_texts
from limba.data.vocabulary.special_ids import SpecialIds, of_encoder
from limba.data.vocabulary.vocabularies import Vocabulary

INNER_SPACE = "\N{NO-BREAK SPACE}"
EXAMPLES = 3  # of labels in a sentence


@preprocessor
def labeled(
    dataset: Dataset, sequence_length: Mapping[str, int], output_features: Features, head: Sequence[str] = ("classes",)
) -> Dataset:
    """Returns {"inputs": the tokens of a text, "targets": its labels}, int32 of at most L.

    `head` is the network's, then its labels. Targets of classes are [the label's number + 1], of tags that number at
    the first piece of each word and 0 elsewhere, of a score [the bits of a float32, where 0.0 is -0.0], and of vectors
    the tokens of the other text. Tokens begin with <cls>, if the vocabulary has it, and end with the end of sequence;
    a longer text is truncated.
    """
    row = labeled_row(output_features["targets"].vocabulary, head, sequence_length["targets"])
    return dataset.map(row, dict.fromkeys(("inputs", "targets"), TOKENS))


def labeled_row(
    vocabulary: Vocabulary, head: Sequence[str], length: int
) -> Callable[[Mapping[str, bytes]], dict[str, np.ndarray]]:
    """Returns what `labeled` does with each row; `head` is the network's, then its labels."""
    kind, *labels = head
    encode, around = encoder(vocabulary), framed(of_encoder(vocabulary), length)
    number = {label: place for place, label in enumerate(labels, 1)}
    pieces_of = word_encoder(vocabulary)

    def row(example: Mapping[str, bytes]) -> dict[str, np.ndarray]:
        text, label = example["inputs"], example["targets"]
        if kind == "tags":
            tokens, starts = joined(pieces_of(text.decode().split(" ")))
            inputs, place = around(tokens)
            targets = np.zeros(place + len(tokens), np.int32)
            targets[place + starts] = [number[each] for each in label.decode().split(" ")]
            return {"inputs": inputs, "targets": targets[: len(inputs) - 1]}
        (inputs,) = encode([text])
        if kind == "vectors":
            targets, _ = around(encode([label])[0])
        elif kind == "score":
            targets = np.array([float(label) or -0.0], np.float32).view(np.int32)
        else:
            targets = np.array([number[label.decode()]], np.int32)
        return {"inputs": around(inputs)[0], "targets": targets}

    return row


def framed(special: SpecialIds, length: int) -> Callable[[np.ndarray], tuple[np.ndarray, int]]:
    """Returns a function from a text's tokens to them with <cls> and the end, at most `length`, and their place."""

    def around(tokens: np.ndarray) -> tuple[np.ndarray, int]:
        return np.array(special.framed(tokens.tolist(), length), np.int32), len(special.before)

    return around


def word_encoder(vocabulary: Vocabulary) -> Callable[[Sequence[str]], list[np.ndarray]]:
    """Returns a function from a sentence's words to the pieces of each: at least one, the unknown one if need be."""
    encode = encoder(vocabulary)
    after = "" if has_dummy_space(vocabulary, piece_texts(vocabulary, vocabulary.vocab_size)) else " "
    unknown = np.array([vocabulary.unk_id or 0], np.int32)

    def pieces(words: Sequence[str]) -> list[np.ndarray]:
        texts = [(after if place else "") + word.replace(INNER_SPACE, " ") for place, word in enumerate(words)]
        return [np.asarray(each, np.int32) if len(each) else unknown for each in encode([t.encode() for t in texts])]

    return pieces


def joined(pieces: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of a sentence, and the place of each word's first one.

    >>> joined([np.array([5, 6]), np.array([7])])
    (array([5, 6, 7]), array([0, 2]))
    """
    sizes = np.array([len(each) for each in pieces])
    return np.concatenate(pieces), np.cumsum(sizes) - sizes


def labels_in(rows: Iterable[bytes], kind: str, place: str) -> list[str]:
    """Returns the labels of rows (text, NUL, label), sorted; those of a score and of pairs are none.

    Raises InputError for a row without text or label, with another number of tags than words, and for a score that is
    no number; `place` names the rows.
    """
    found: set[str] = set()
    for number, row in enumerate(rows, 1):
        text, _, label = row.decode().partition("\0")
        if not (text.strip() and label.strip()):
            raise InputError(f"{place} has a row without text or without label, number {number}; correct or remove it.")
        words, tags = text.split(" "), label.split(" ")
        if kind == "tags" and (len(words) != len(tags) or not (all(words) and all(tags))):
            raise InputError(
                f"{place} has {len(words)} words and {len(tags)} tags in its row number {number}, {text[:40]!r}…; give"
                " a tag for each word, both lists with one space between."
            )
        if kind == "score" and not _is_number(label):
            raise InputError(f"{place} has the score {label[:40]!r} in its row number {number}; give a number.")
        found.update(tags if kind == "tags" else [label] if kind == "classes" else [])
    return sorted(found)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def check_labels(found: Iterable[str], labels: Sequence[str], place: str) -> None:
    """Raises InputError for labels of a split that the network does not have."""
    if unknown := sorted(set(found) - set(labels)):
        more = f" and {len(unknown) - EXAMPLES} more" if len(unknown) > EXAMPLES else ""
        raise InputError(
            f"{place} has the label {', '.join(map(repr, unknown[:EXAMPLES]))}{more}, which is not in"
            f" ModelConfig.labels, {', '.join(map(repr, labels))}: those of the training text unless they are given;"
            " correct the files, or give all labels."
        )
