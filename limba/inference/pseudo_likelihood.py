"""How likely an encoder finds a text: it predicts each token with masks in the token's place and after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, PyTree

from limba.data.vocabulary.sentences import UNSPACED
from limba.data.vocabulary.special_ids import SpecialIds
from limba.data.vocabulary.spelling import encoder, piece_texts
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.inference import generate, scoring
from limba.inference.mask_filling import mask_of
from limba.inference.texts import whole_letters
from limba.model import Network
from limba.sharding.mesh import batch_sharding
from limba.training.placement import place_batch


class _Masked(NamedTuple):
    """A token to score: the text it is in, its position there, and the end of its word, up to which masks stand."""

    text: int
    position: int
    end: int


def pseudo_log_likelihoods(
    network: Network,
    params: PyTree,
    mesh: Mesh,
    vocabulary: Vocabulary,
    special: SpecialIds,
    pairs: Sequence[tuple[str, str]],
    num_rows: int,
) -> Float[np.ndarray, " N"]:
    """Returns the pseudo log likelihood of each target, which follows its inputs; they may be empty.

    PLL-word-l2r (Kauf & Ivanova 2023, arXiv:2305.10588): the sum over the target's tokens of ln p(token | the text in
    which this token and the later ones of its word are masks). Begin and end are not scored.
    """
    mask = mask_of(vocabulary, special)
    encode = encoder(vocabulary)
    begins = begins_word([*piece_texts(vocabulary, network.config.vocab_size)])
    texts: list[np.ndarray] = []
    tokens: list[_Masked] = []
    for number, pair in enumerate(pairs):
        inputs, target = (np.asarray(ids, np.int32) for ids in encode([whole_letters(text).encode() for text in pair]))
        ids = np.asarray(special.framed([*inputs.tolist(), *target.tolist()]), np.int32)
        texts.append(ids)
        begin = len(special.before)
        end = begin + len(inputs) + len(target)
        word_edges = np.flatnonzero(np.append(begins[ids[:end]], True))
        for position in range(begin + len(inputs), end):
            next_edge = np.searchsorted(word_edges, position, side="right")
            tokens.append(_Masked(number, position, int(word_edges[next_edge])))
    sums = np.zeros(len(pairs), np.float64)
    for numbers in generate.batches_of_like_lengths([len(texts[token.text]) for token in tokens], num_rows):
        rows = [tokens[number] for number in numbers]
        whole = [texts[token.text] for token in rows]
        targets = generate.padded(whole, num_rows)
        inputs = targets.copy()
        weights = np.zeros_like(targets)
        positions = np.zeros((num_rows, 1), np.int32)
        for row, token in enumerate(rows):
            inputs[row, token.position : token.end] = mask
            weights[row, token.position] = 1
            positions[row] = token.position
        batch = {
            "decoder_input_tokens": inputs,
            "decoder_target_tokens": generate.read_mask(whole, num_rows),  # says only which positions are text
            "scored_tokens": targets,
            "decoder_loss_weights": weights,
            "decoder_predicted_positions": positions,
        }
        placed = place_batch(batch, batch_sharding(mesh))
        values = generate.fetched(scoring.row_log_likelihoods(network, params, placed))
        np.add.at(sums, [token.text for token in rows], values[: len(rows)])
    return sums.astype(np.float32)


def begins_word(pieces: Sequence[bytes]) -> Bool[np.ndarray, " V"]:
    """Returns which pieces begin a word: those that a space begins, or a letter of a script without spaces.

    >>> begins_word([" the".encode(), "re".encode(), "東京".encode()]).tolist()
    [True, False, True]
    """
    texts = [piece.decode("utf-8", "ignore") for piece in pieces]
    return np.array([text[:1] == " " or UNSPACED.match(text) is not None for text in texts])
