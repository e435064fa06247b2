"""How likely an encoder finds a text: each token is hidden with the rest of its word, one row for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from limba.data.objectives.labels import framed
from limba.data.stream.placement import place_batch
from limba.data.vocabulary.load import encoder, mask_id, piece_bytes
from limba.data.vocabulary.sentences import UNSPACED
from limba.inference.generate import batches_of_like_lengths, fetched, padded, row_log_likelihoods
from limba.inference.texts import whole_letters
from limba.sharding.mesh import batch_sharding

if TYPE_CHECKING:
    from limba.inference.load import TrainedModel


def pseudo_log_likelihoods(trained: TrainedModel, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " N"]:
    """Returns the pseudo log likelihood of each target, which follows its inputs; they may be empty.

    PLL-word-l2r (Kauf & Ivanova 2023, arXiv:2305.10588): the sum over the target's tokens of ln p(token | the text in
    which this token and the later ones of its word are masks). Begin and end are not scored.
    """
    vocabulary, num_rows = trained.vocabulary, trained.batch_size
    mask, encode = mask_id(vocabulary), encoder(vocabulary)
    begins = begins_word([*piece_bytes(vocabulary, trained.network.config.vocab_size)])
    texts, hidden = list[np.ndarray](), list[tuple[int, int, int]]()  # a text's number; the first and the last + 1
    for number, pair in enumerate(pairs):
        read, target = (np.asarray(encode(whole_letters(each).encode()), np.int32) for each in pair)
        size = len(read) + len(target)
        ids, begin = framed(vocabulary, size + 2)(np.concatenate([read, target]))
        texts.append(ids)
        edges = np.flatnonzero(np.append(begins[ids[: begin + size]], True))
        for place in range(begin + len(read), begin + size):
            hidden.append((number, place, int(edges[np.searchsorted(edges, place, side="right")])))
    found = np.zeros(len(pairs), np.float64)
    for numbers in batches_of_like_lengths([len(texts[number]) for number, _, _ in hidden], num_rows):
        rows = [hidden[number] for number in numbers]
        targets = padded([texts[number] for number, _, _ in rows], num_rows)
        inputs, weights, places = targets.copy(), np.zeros_like(targets), np.zeros((num_rows, 1), np.int32)
        for row, (_, place, end) in enumerate(rows):
            inputs[row, place:end], weights[row, place], places[row] = mask, 1, place
        names = ("input_tokens", "target_tokens", "loss_weights", "predicted_positions")
        batch = {f"decoder_{name}": each for name, each in zip(names, (inputs, targets, weights, places), strict=True)}
        placed = place_batch(batch, batch_sharding(trained.mesh))
        values = fetched(row_log_likelihoods(trained.network, trained.params, placed))
        np.add.at(found, [number for number, _, _ in rows], values[: len(rows)])
    return found.astype(np.float32)


def begins_word(pieces: Sequence[bytes]) -> Bool[np.ndarray, " V"]:
    """Returns which pieces begin a word: those that a space begins, or a letter of a script without spaces.

    >>> begins_word([" the".encode(), "re".encode(), "東京".encode()]).tolist()
    [True, False, True]
    """
    texts = [each.decode("utf-8", "ignore") for each in pieces]
    return np.array([text[:1] == " " or UNSPACED.match(text) is not None for text in texts])
