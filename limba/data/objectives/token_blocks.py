"""Documents to tokens, many at once, and their stream into rows, block by block: the common part of all objectives.

A block is a fixed number of tokens with its own random numbers, so a row is a pure function of the tokens
and these. A place then names the block, and a shard's rows do not depend on another shard.

In the examples of all objectives these are `tokens` and `features`:

>>> from limba.data.dataset import TEXT, Elements
>>> from limba.data.vocabulary import ByteVocabulary
>>> texts = Elements([{"text": b"To be, or not to be, that is the question."}], {"text": TEXT})
>>> features = {name: Feature(ByteVocabulary(100)) for name in ("inputs", "targets")}
>>> tokens = tokenize_documents(texts, features)
>>> len(next(iter(tokens))["targets"])
42
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from limba.config import ConfigError, InputError
from limba.data.dataset import TOKENS, Dataset, DocumentError, preprocessor
from limba.data.draws import Words
from limba.data.registry import Feature
from limba.data.vocabulary.addresses import address_of
from limba.data.vocabulary.load import MOST_EXTRA_IDS
from limba.data.vocabulary.sentinels import (
    are_sentinels_last,
    begin_id,
    has_byte_sentinels,
    num_sentinels,
    sentinel_table,
    warn_of_byte_sentinels,
)
from limba.data.vocabulary.shifted import StreamVocabulary, offset_of
from limba.data.vocabulary.spelling import encoder
from limba.data.vocabulary.tokenizers import TokenizersVocabulary
from limba.data.vocabulary.vocabularies import Vocabulary

Features = Mapping[str, Feature]
Side = tuple[np.ndarray, np.ndarray]  # tokens int32 [B, L], and bool [B, L]: which of them stay
# {"inputs": int32 [B, I], "num_inputs": int32 [B], "targets": …, "num_targets": …}: rows, and how much of each counts;
# and "num_tokens": int32 [B], the tokens of the block that each is made of
Rows = Mapping[str, np.ndarray]
NAMES = ("inputs", "num_inputs", "targets", "num_targets", "num_tokens")


def unwrapped(step: Callable[..., object]) -> Callable[..., object]:
    """Returns the function of a preprocessor, without the choices that `functools.partial` has given it."""
    while isinstance(step, functools.partial):
        step = step.func
    return step


def rows_of_blocks(dataset: Dataset, tokens_per_block: int, rows_of: Callable[[np.ndarray, Words], Rows]) -> Dataset:
    """Returns {"inputs", "targets"}, int32 vectors, of {"targets": int32 [n]}, the stream of tokens.

    `rows_of(tokens [n], words)` returns a block's rows as `padded` does, which take its tokens in order. n is
    `tokens_per_block`, or less at the end of a finite stream.
    """
    words_of = dataset.take_words()

    def rows(tokens: np.ndarray, ends: object, number: int) -> list[tuple[dict[str, np.ndarray], int]]:
        del ends
        made = rows_of(tokens, words_of(number))
        stops = np.cumsum(made["num_tokens"]).tolist()
        sizes = zip(made["num_inputs"].tolist(), made["num_targets"].tolist(), strict=True)
        sides = zip(made["inputs"], made["targets"], sizes, stops, strict=True)
        return [
            ({"inputs": inputs[:num_inputs], "targets": targets[:num_targets]}, stop)
            for inputs, targets, (num_inputs, num_targets), stop in sides
        ]

    return dataset.blocks(tokens_per_block).cut(rows, dict.fromkeys(("inputs", "targets"), TOKENS))


def padded(
    inputs: Side, targets: Side, widths: tuple[int, int], before_inputs: int | None = None, after: int | None = None
) -> Rows:
    """Returns the selected tokens as zero-padded matrices, with `num_inputs` and `num_targets` of each row.

    If not None, `before_inputs` is put before each row's inputs, and `after` at the end of both sides.
    """
    made = (*_compacted(*inputs, widths[0], before_inputs, after), *_compacted(*targets, widths[1], None, after))
    tokens = inputs[0]
    num_tokens = np.full(len(tokens), tokens.shape[1], np.int32)
    return dict(zip(NAMES, (*made, num_tokens), strict=True))


def _compacted(
    tokens: np.ndarray, stays: np.ndarray, width: int, before: int | None, after: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of each row that stay, without gaps [B, width], and their number [B]."""
    offset = int(before is not None)
    matrix = np.zeros([len(tokens), width], np.int32)
    rows, columns = np.nonzero(stays)
    matrix[rows, np.cumsum(stays, axis=1)[rows, columns] - 1 + offset] = tokens[rows, columns]
    lengths = stays.sum(axis=1, dtype=np.int32) + np.int32(offset)
    if before is not None:
        matrix[:, 0] = before
    if after is not None:
        matrix[np.arange(len(matrix)), lengths] = after
        lengths += 1
    return matrix, lengths


def stacked(parts: Sequence[Rows]) -> Rows:
    """Concatenates the rows of several results of `padded`."""
    return {name: np.concatenate([part[name] for part in parts]) for name in NAMES}


def check_targets(objective: str, lengths: Mapping[str, int], needed: int) -> None:
    """Raises ConfigError if targets are configured and too short."""
    targets_length = lengths.get("targets")
    if targets_length is not None and targets_length < needed:
        raise ConfigError(
            "DataConfig.task_feature_lengths",
            f"gives 'targets' {targets_length}, and {objective} of {lengths['inputs']} inputs needs "
            f"{needed}; give {needed}, or leave 'targets' out.",
            ("DataConfig.task_feature_lengths", {"inputs": lengths["inputs"]}),
        )


def require_sentinels(
    vocabulary: Vocabulary, needed: int, what: str, otherwise: str, may_be_bytes: bool = False
) -> None:
    """Raises InputError if the vocabulary has too few sentinels for `what`.

    With `may_be_bytes`, bytes without extra ids then give the ids of real text, as in T5X: a warning.
    """
    available = num_sentinels(vocabulary)
    if may_be_bytes and has_byte_sentinels(vocabulary):
        warn_of_byte_sentinels(needed, what)
    elif needed > MOST_EXTRA_IDS:  # more ids would be refused
        raise ConfigError(
            "DataConfig.task_feature_lengths",
            f"gives rows so long that {what} needs {needed:,} sentinels, and a model has at most {MOST_EXTRA_IDS:,};"
            f" give shorter rows, or take {otherwise}.",
        )
    elif needed > available and isinstance(vocabulary, TokenizersVocabulary):
        raise InputError(
            f"{what} needs {needed} sentinels, and the vocabulary {address_of(vocabulary)} has {available}; add the"
            f" others (<extra_id_{available}>, …) to the file as special tokens, or take {otherwise}."
        )
    elif needed > available and isinstance(vocabulary, StreamVocabulary):
        raise InputError(
            f"{what} needs {needed} sentinels, and the vocabulary {vocabulary.address} has {available}; take"
            f" {otherwise}."
        )
    elif needed > available:
        raise InputError(
            f"{what} needs {needed} sentinels and the vocabulary has {available}; set DataConfig.extra_ids to {needed},"
            f" or take {otherwise}.",
            fix=("DataConfig.extra_ids", needed),
        )


class Sentinels:
    """The sentinels as an objective makes rows with them: `top` is <extra_id_0>, and they count down from there.

    Where a vocabulary has them elsewhere than T5, as its last ids, these numbers are above all ids, and `placed` puts
    the ids of `load.sentinel_table` in their place.
    """

    def __init__(self, vocabulary: Vocabulary):
        table = sentinel_table(vocabulary)
        self.top = vocabulary.vocab_size - 1
        self._table = None
        self._size = vocabulary.vocab_size
        if not are_sentinels_last(vocabulary):
            self.top += len(table)
            self._table = np.asarray(table, np.int32)[::-1]  # by their number above the ids

    def placed(self, rows_of: Callable[..., Rows]) -> Callable[..., Rows]:
        """Returns the function of rows with the vocabulary's own sentinels."""
        table = self._table
        size = self._size
        if table is None:
            return rows_of

        def rows(*arguments: Any) -> Rows:
            made = dict(rows_of(*arguments))
            for name in ("inputs", "targets"):
                ids = made[name]
                made[name] = np.where(ids >= size, table[np.maximum(ids - size, 0)], ids)
            return made

        return rows


Tokenize = Callable[[Sequence[bytes]], list[np.ndarray]]  # from documents to the tokens of each, int32 [n]


@preprocessor
def tokenize_documents(
    dataset: Dataset,
    output_features: Features,
    append_eos: bool = False,
    begins: bool = False,
    follows_start: bool = False,
) -> Dataset:
    """Returns {"targets": int32 [n]}, the tokens of 32 documents in a row, of {"text"} or {"tokens"}, bytes.

    In a mixture of many tasks they are of 8 documents. "tokens" are the ids of documents tokenized beforehand, as
    little-endian int32 bytes. As in t5, nothing separates documents. With `append_eos` each one ends with the
    end-of-sequence id, as causal language modeling needs it; with `begins`, for an encoder, it begins with
    <cls>, if the vocabulary has it. A vocabulary of a folder for transformers has its own template for both; with
    `follows_start` the start that the template begins with is left out, since a language model reads it before each
    example.
    Empty documents give no token. Raises InputError, which names the document where its place is known, for ids that
    the vocabulary does not have.

    >>> next(iter(tokens))["targets"][:3].tolist()  # of tokenize_documents(texts, features)
    [87, 114, 35]
    """
    name, tokenize = tokenizer_of(dataset, output_features, append_eos, begins, follows_start)

    def tokens_of(documents: list[Mapping[str, bytes]]) -> Sequence[np.ndarray]:
        return tokenize([document[name] for document in documents])

    return dataset.tokens(tokens_of, dataset.rows_per_block)


def tokenizer_of(
    dataset: Dataset,
    output_features: Features,
    append_eos: bool = False,
    begins: bool = False,
    follows_start: bool = False,
) -> tuple[str, Tokenize]:
    """Returns the name of the documents' feature, and the function from many of them to the tokens of each."""
    vocabulary = output_features["targets"].vocabulary
    begin = np.array(_before(vocabulary, follows_start) if begins else (), np.int32)
    end = np.array(_after(vocabulary) if append_eos else (), np.int32)
    offset = np.int32(offset_of(vocabulary))
    name = "tokens" if "tokens" in dataset.spec else "text"
    vectors = encoder(vocabulary)
    if name == "tokens":
        num_ids = vocabulary.vocab_size - int(offset)
        vectors = lambda documents: [ids + offset for ids in _ids_of(documents, num_ids)]

    def tokens(documents: Sequence[bytes]) -> list[np.ndarray]:
        token_ids = vectors(documents)
        if len(begin) + len(end):
            token_ids = [np.concatenate([begin, vector, end]) if len(vector) else vector for vector in token_ids]
        return token_ids

    return name, tokens


def _ids_of(documents: Sequence[bytes], num_ids: int) -> list[np.ndarray]:
    """Returns the int32 ids of each document; DocumentError for one that holds anything else, such as text."""
    for number, id_bytes in enumerate(documents):
        if len(id_bytes) % 4:
            raise _not_ids(number, f"has {len(id_bytes):,} bytes in the column 'tokens', which are not int32 ids")
    all_ids = np.frombuffer(b"".join(documents), "<u4")  # in which a negative id is a large one
    ids = [np.frombuffer(id_bytes, "<i4") for id_bytes in documents]
    if all_ids.max(initial=0) < num_ids:
        return ids
    for number, of_document in enumerate(ids):
        wrong = of_document[(of_document < 0) | (of_document >= num_ids)]
        if len(wrong):
            raise _not_ids(number, f"has the id {wrong[0]:,}, and the vocabulary has 0 to {num_ids - 1:,}")
    return ids


def _not_ids(number: int, fact: str) -> DocumentError:
    return DocumentError(
        number,
        f"{fact}; tokenize the corpus by the run's vocabulary, or set DataConfig.column to 'tokens[]' if it holds"
        " text.",
    )


def _before(vocabulary: Vocabulary, follows_start: bool) -> tuple[int, ...]:
    """Returns what a document begins with."""
    if not isinstance(vocabulary, StreamVocabulary):
        begin = begin_id(vocabulary)
        return () if begin is None else (begin,)
    begins = vocabulary.begins
    starts = begins[:1] == (vocabulary.shifted(vocabulary.start),)
    return begins[1:] if follows_start and starts else begins


def _after(vocabulary: Vocabulary) -> tuple[int, ...]:
    """Returns what a document ends with."""
    if isinstance(vocabulary, StreamVocabulary):
        return vocabulary.ends
    return () if vocabulary.eos_id is None else (vocabulary.eos_id,)
