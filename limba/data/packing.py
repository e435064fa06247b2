"""Packs short examples into full rows, and turns rows, packed or not, into the features that the model reads.

In rows of the stream 0 is padding and nothing else. A model that is published with other ids gets its own here, and
`*_is_read` says what is text (`RowIds`): the network masks by that, whatever id padding has.

A packed row holds several examples, distinguished by segment ids. Attention stays inside a segment, so an example has
the same loss as in a row of its own (Raffel et al. 2020, arXiv:1910.10683, section 3.1.2).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from limba.config import InputError
from limba.data.dataset import Dataset, Derived, Item, Place, Spec
from limba.data.vocabulary.shifted import RowIds

FEATURES = ("inputs", "targets")
PREDICTED = 1 << 23  # added to an id of masked inputs whose target is trained
CAUSAL = 1 << 22  # added to an id of masked inputs that is read causally; no vocabulary has 4 million pieces
OPEN_ROWS = 16  # open rows of a shard, with room for an example
MOST_EXAMPLES = 4_096  # a row is given after so many examples since its first one: a resumed run makes them again

Example = Mapping[str, np.ndarray]


def rows_of(dataset: Dataset, lengths: Mapping[str, int], packed: bool) -> tuple[Dataset, dict[str, int]]:
    """Returns (examples that are rows, the lengths of their features); those are packed with segment ids.

    `matrices` pads the rows. Raises InputError if the examples lack a feature of `lengths`.
    """
    for name in lengths:
        if name not in dataset.spec or len(dataset.spec[name].shape) != 1:
            raise InputError(
                f"The task's preprocessors return no tokens {name!r}; add the preprocessor that makes them."
            )
    if not packed:
        return dataset, dict(lengths)
    rows = pack(dataset, lengths)
    return rows, {name: shape[0] or 0 for name, (_, shape) in rows.spec.items()}


def matrices(examples: Sequence[Example], widths: Mapping[str, int], num_rows: int) -> dict[str, np.ndarray]:
    """Returns the features of `widths`, int32 [num_rows, L], truncated and zero-padded; missing rows are zeros."""
    features = {}
    for name, width in widths.items():
        matrix = np.zeros([num_rows, width], np.int32)
        for row, example in zip(matrix, examples, strict=False):
            tokens = example[name][:width]
            row[: len(tokens)] = tokens
        features[name] = matrix
    return features


def batched(dataset: Dataset, lengths: Mapping[str, int], num_rows: int, whole: bool, packed: bool) -> Dataset:
    """Returns the features of `lengths`, int32 [num_rows, L], truncated and zero-padded, or packed with segment ids.

    The last element has fewer rows, or with `whole` is left out. Raises InputError if the examples lack a feature.
    """
    rows, widths = rows_of(dataset, lengths, packed)
    spec = {name: Spec("int32", (None, width)) for name, width in widths.items()}
    batches = rows.batch(num_rows, drop_remainder=whole)
    return batches.map(lambda examples: matrices(examples, widths, len(examples)), spec)


def padded_rows(rows: Mapping[str, np.ndarray], num_rows: int) -> dict[str, np.ndarray]:
    """Returns the rows, padded with rows of zeros to `num_rows`."""
    return {name: np.pad(value, [(0, num_rows - len(value)), (0, 0)]) for name, value in rows.items()}


def pack(dataset: Dataset, lengths: Mapping[str, int]) -> Dataset:
    """Returns rows of several examples each, int32 [length]: {name, name_segment_ids} for each feature of `lengths`.

    Segments are numbered from 1 in the order of their examples; padding has segment 0. An example is put into the first
    open row with room for it; if there is none, the fullest row is returned first. Examples longer than a row are
    truncated, empty ones skipped. seqio's `trim_and_pack_dataset` closes all its rows after every 512 examples: its
    rows are less full.
    """
    return _Packed(dataset, {name: lengths[name] for name in FEATURES if name in lengths})


class _Open(NamedTuple):
    """An example in an open row: its number, the place before it, and what it is made of."""

    number: int
    before: Place
    item: Item[list[np.ndarray]]


class _Packed(Derived):
    def __init__(self, parent: Dataset, lengths: Mapping[str, int]):
        self._names = list(lengths)
        self._widths = np.array(list(lengths.values()))
        self._kinds = {part: width for name, width in lengths.items() for part in (name, f"{name}_segment_ids")}
        super().__init__(parent, {name: Spec("int32", (width,)) for name, width in self._kinds.items()})

    def read(self, place: Place = None) -> Iterator[Item[dict[str, np.ndarray]]]:
        """Yields the rows.

        A place has the numbers of the examples in the open rows, and the place before the oldest of them, whose number
        is `first`: a resumed reading makes the examples from there again, up to `given`.
        """
        begun = place or {"before": None, "first": 0, "given": 0, "open": []}
        row_of = {number: row for row, numbers in enumerate(begun["open"]) for number in numbers}
        rows: list[list[_Open]] = [[] for _ in range(OPEN_ROWS)]
        used = np.zeros([OPEN_ROWS, len(self._names)], np.int64)  # tokens of each open row
        before = begun["before"]
        number = begun["first"]

        def put(row: int, example: _Open, sizes: np.ndarray) -> None:
            rows[row].append(example)
            used[row] += sizes

        def finished(row: int) -> list[_Open]:
            examples = rows[row]
            rows[row] = []
            used[row] = 0
            return examples

        for item in self._parent.read(before):
            cut = [np.asarray(item.value[name][:width]) for name, width in zip(self._names, self._widths, strict=True)]
            sizes = np.array([np.count_nonzero(vector) for vector in cut])  # some are padded already
            vectors = [vector[:size] for vector, size in zip(cut, sizes, strict=True)]
            example = _Open(number, before, item._replace(value=vectors))
            before = item.place
            number += 1
            if example.number < begun["given"]:
                if example.number in row_of:
                    put(row_of[example.number], example, sizes)
                continue
            # Before the example is put: so the rows that go for their age follow from any place alone.
            while (oldest := _oldest(rows)) is not None and example.number - rows[oldest][0].number >= MOST_EXAMPLES:
                completed = finished(oldest)
                yield self._row(completed, self._place(rows, example.before, example.number))
            if not sizes.any():
                continue
            has_room = np.all(used + sizes <= self._widths, axis=1)
            row = int(has_room.argmax())
            completed: list[_Open] = []
            if not has_room[row]:
                row = int(used.sum(1).argmax())
                completed = finished(row)
            put(row, example, sizes)
            if completed:
                yield self._row(completed, self._place(rows, before, number))
        for row in range(OPEN_ROWS):
            if rows[row]:
                completed = finished(row)
                yield self._row(completed, self._place(rows, before, number))

    def _place(self, rows: Sequence[Sequence[_Open]], after: Place, number: int) -> Place:
        """Returns the place after example `number` - 1, whose own place is `after`, with these open rows."""
        oldest = _oldest(rows)
        opened = [[example.number for example in row] for row in rows]
        if oldest is None:
            return {"before": after, "first": number, "given": number, "open": opened}
        first = rows[oldest][0]
        return {"before": first.before, "first": first.number, "given": number, "open": opened}

    def _row(self, examples: Sequence[_Open], place: Place) -> Item[dict[str, np.ndarray]]:
        features = {name: np.zeros(width, np.int32) for name, width in self._kinds.items()}
        for column, name in enumerate(self._names):
            start = 0
            for segment, example in enumerate(examples, 1):
                vector = example.item.value[column]
                stop = start + len(vector)
                features[name][start:stop] = vector
                features[f"{name}_segment_ids"][start:stop] = segment
                start = stop
        of_examples = itertools.chain.from_iterable(example.item.documents for example in examples)
        documents = list(dict.fromkeys(of_examples))  # examples of TensorFlow have the same ones
        tasks = [task for example in examples for task in example.item.tasks]
        return Item(features, documents, place, None, tasks)


def _oldest(rows: Sequence[Sequence[_Open]]) -> int | None:
    """Returns the row with the oldest example; None where all are empty."""
    filled = [row for row, examples in enumerate(rows) if examples]
    return min(filled, key=lambda row: rows[row][0].number, default=None)


def model_features(
    rows: Mapping[str, np.ndarray],
    sequence_length: int | None = None,
    num_predicted: int | None = None,
    row_ids: RowIds | None = None,
) -> dict[str, np.ndarray]:
    """Returns the model features, int32 [B, L], with the names of seqio's feature converters.

    The decoder's inputs are its targets shifted right after a 0, in each segment of packed rows; padding
    has weight 0. With `sequence_length`, for a decoder-only model, inputs and targets become one sequence; with
    `num_predicted`, for an encoder, its inputs are the inputs, and only targets that they hide have a weight: the first
    `num_predicted` of a row, whose places, and after them others without a weight, are `decoder_predicted_positions`.
    With as many as a row has, `decoder_causal_attention` is given instead: 1, or 0 in a text that is read causally.
    With `row_ids` the rows are of a published vocabulary, and the features have its own ids, see `_published`.

    >>> features = model_features({"targets": np.array([[7, 8, 1, 0]])})
    >>> features["decoder_input_tokens"].tolist(), features["decoder_loss_weights"].tolist()
    ([[0, 7, 8, 1]], [[1, 1, 1, 0]])
    """
    features = _features(rows, sequence_length, num_predicted)
    return features if row_ids is None else _published(features, row_ids, is_masked=num_predicted is not None)


def _features(
    rows: Mapping[str, np.ndarray], sequence_length: int | None, num_predicted: int | None
) -> dict[str, np.ndarray]:
    if num_predicted is not None:
        inputs = np.asarray(rows["inputs"], np.int32)
        features = _decoder_features(np.asarray(rows["targets"], np.int32), rows.get("targets_segment_ids"))
        places = np.argsort(inputs < PREDICTED, axis=1, kind="stable")[:, :num_predicted].astype(np.int32)
        weights = np.zeros_like(inputs)
        np.put_along_axis(weights, places, np.take_along_axis(inputs, places, axis=1) // PREDICTED, axis=1)
        features |= {"decoder_input_tokens": inputs % CAUSAL, "decoder_loss_weights": weights}
        if num_predicted < inputs.shape[1]:
            return features | {"decoder_predicted_positions": places}
        return features | {"decoder_causal_attention": (inputs % PREDICTED < CAUSAL).astype(np.int32)}
    if sequence_length is not None and "inputs" in rows:
        return _joined(rows, sequence_length)
    targets = np.asarray(rows["targets"], np.int32)
    features = _decoder_features(targets, rows.get("targets_segment_ids"))
    if "inputs" in rows:
        features["encoder_input_tokens"] = np.asarray(rows["inputs"], np.int32)
    if "inputs_segment_ids" in rows:
        features["encoder_segment_ids"] = np.asarray(rows["inputs_segment_ids"], np.int32)
    return features


def _decoder_features(targets: np.ndarray, segments: np.ndarray | None) -> dict[str, np.ndarray]:
    shifted = np.pad(targets[:, :-1], [(0, 0), (1, 0)])
    weights = (targets != 0).astype(np.int32)
    features = {"decoder_target_tokens": targets, "decoder_input_tokens": shifted, "decoder_loss_weights": weights}
    if segments is not None:
        features["decoder_segment_ids"] = np.asarray(segments, np.int32)
        features["decoder_input_tokens"] = np.where(_continues(segments), shifted, 0)
    return features


def _published(features: Mapping[str, np.ndarray], row_ids: RowIds, is_masked: bool) -> dict[str, np.ndarray]:
    """Returns features of the stream, whose ids are higher by one, with published ids.

    `decoder_is_read`, and for an encoder-decoder `encoder_is_read`, are 1 at text and 0 at padding, where an id stands
    that is never read. A decoder begins with its own start. An encoder, `is_masked`, that reads rows causally gets them
    shifted too, as `decoder_previous_tokens`.

    >>> features = _published(_decoder_features(np.array([[8, 9, 2, 0]]), None), RowIds(start=5, filling=1), False)
    >>> [features[f"decoder_{name}"].tolist() for name in ("input_tokens", "target_tokens", "is_read")]
    [[[5, 7, 8, 5]], [[7, 8, 1, 1]], [[1, 1, 1, 0]]]
    """
    published = dict(features)
    targets = features["decoder_target_tokens"]
    is_read = targets != 0
    published["decoder_is_read"] = is_read.astype(np.int32)
    published["decoder_target_tokens"] = _as_published(targets, row_ids)
    segments = features.get("decoder_segment_ids", published["decoder_is_read"])
    if is_masked:
        published["decoder_input_tokens"] = _as_published(features["decoder_input_tokens"], row_ids)
    else:
        published["decoder_input_tokens"] = _shifted(published["decoder_target_tokens"], segments, row_ids)
    if is_masked and "decoder_causal_attention" in features:
        published["decoder_previous_tokens"] = _shifted(published["decoder_input_tokens"], segments, row_ids)
    if "encoder_input_tokens" in features:
        inputs = features["encoder_input_tokens"]
        published["encoder_is_read"] = (inputs != 0).astype(np.int32)
        published["encoder_input_tokens"] = _as_published(inputs, row_ids)
    return published


def stream_targets(features: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the targets of model features as the stream has them, int32 [B, L]: 0 is padding alone."""
    targets = features["decoder_target_tokens"]
    if "decoder_is_read" not in features:
        return targets
    return np.where(features["decoder_is_read"] > 0, targets + 1, 0).astype(np.int32)


def _as_published(tokens: np.ndarray, row_ids: RowIds) -> np.ndarray:
    return np.where(tokens != 0, tokens - 1, row_ids.filling).astype(np.int32)


def _shifted(tokens: np.ndarray, segments: np.ndarray, row_ids: RowIds) -> np.ndarray:
    """Returns tokens shifted right, after the start, in each segment."""
    before = np.pad(tokens[:, :-1], [(0, 0), (1, 0)], constant_values=row_ids.start)
    return np.where(_continues(segments), before, row_ids.start).astype(np.int32)


def _continues(segments: np.ndarray) -> np.ndarray:
    """Returns bool [B, L]: True at tokens in the segment of the previous token."""
    return segments == np.pad(segments[:, :-1], [(0, 0), (1, 0)])


def _joined(rows: Mapping[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Returns each example's inputs and targets as one sequence; inputs have full attention and no loss.

    `decoder_causal_attention` is 1 where a token of the prefix is read, its start included (seqio's prefix LM).
    """
    sides = [np.asarray(rows[name], np.int32) for name in FEATURES]
    tokens = np.concatenate(sides, axis=1)
    packed = "inputs_segment_ids" in rows
    numbers = np.concatenate([rows[f"{name}_segment_ids"] for name in FEATURES], axis=1) if packed else tokens != 0
    numbers = numbers.astype(np.int32)
    is_target = np.repeat([[False, True]], [side.shape[1] for side in sides], axis=1)
    # Examples in their order, inputs before targets, padding last.
    rank = np.where(tokens == 0, np.iinfo(np.int32).max, 2 * numbers + is_target)
    order = np.argsort(rank, axis=1, kind="stable")[:, :length]
    tokens, numbers = (np.take_along_axis(array, order, axis=1) for array in (tokens, numbers))
    weights = np.take_along_axis(np.broadcast_to(is_target, rank.shape), order, axis=1) & (tokens != 0)
    is_prefix = ~weights & (tokens != 0)
    features = _decoder_features(tokens, numbers if packed else None)
    reads_prefix = np.pad(is_prefix[:, :-1], [(0, 0), (1, 0)]) & _continues(numbers)
    return {
        **features,
        "decoder_loss_weights": weights.astype(np.int32),
        "decoder_causal_attention": (is_prefix | reads_prefix).astype(np.int32),
    }
