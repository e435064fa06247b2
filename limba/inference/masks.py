"""What an encoder does with texts: the pieces that it would write in the place of masks."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from limba.config import InputError
from limba.data.stream.placement import place_batch
from limba.data.vocabulary.load import SPACE, PieceTable, Vocabulary, is_byte_piece, mask_id
from limba.inference.gaps import Fill, pieces_of
from limba.inference.generate import EOS, batches_of_like_lengths, fetched, padded
from limba.model import Network
from limba.sharding.mesh import batch_sharding, num_batch_groups

if TYPE_CHECKING:
    from jax.sharding import Mesh

MASK = re.compile(
    r"<mask>|\[MASK\]|<\|mask\|>|<extra_id_\d+>|_{3,}"
)  # how a text may write it, whatever the vocabulary
PLACES_STEP = 8  # masks of a row are padded to a multiple, so that few programs are compiled


def masked_ids(text: str, vocabulary: Vocabulary, length: int | None = None) -> Int[np.ndarray, " L"]:
    """Returns a text's ids as an encoder reads them, with the end of sequence last; at most `length`.

    <mask>, a <extra_id_0> and ___ are each one mask. What follows one without a space is its word's continuation.
    """
    mask, end = mask_id(vocabulary), int(vocabulary.eos_id or EOS)
    table, ids, parts = PieceTable(vocabulary), list[int](), MASK.split(text)
    for number, part in enumerate(parts):
        if table.kind != "bytes" and number < len(parts) - 1:
            part = part.rstrip()  # the space before a mask is its word's
        found = list(vocabulary.encode(part)) if part.strip() else []
        ids += [mask] if number else []
        ids += _continued(found, table) if number and found and not part[0].isspace() else found
    return np.asarray([*ids[: None if length is None else length - 1], end], np.int32)


def _continued(ids: list[int], table: PieceTable) -> list[int]:
    """Returns ids without the space that SentencePiece puts before a text."""
    piece = table.name(ids[0])
    if not piece.startswith(SPACE):
        return ids
    rest = table.id_of(piece[len(SPACE) :]) if piece != SPACE else None
    return ids[1:] if piece == SPACE else ids if rest is None else [rest, *ids[1:]]


def fills_of_masks(
    network: Network, params: PyTree, mesh: Mesh, vocabulary: Vocabulary, texts: Sequence[str], top: int = 5
) -> list[list[list[Fill]]]:
    """Returns the `top` likeliest pieces of each mask of each text, best first, with the encoder's probabilities.

    A fill is one piece that spells text; after a space it begins with one, else it continues its word. Each mask is
    filled as if the others stayed. Raises InputError for a text without a mask.
    """
    pieces, mask = pieces_of(vocabulary, network.config.vocab_size), mask_id(vocabulary)
    usual = pieces.is_text.copy()
    usual[: vocabulary.vocab_size] &= ~is_byte_piece(vocabulary)  # a part of a letter
    ids = [masked_ids(text, vocabulary) for text in texts]
    places = [np.flatnonzero(each == mask).astype(np.int32) for each in ids]
    for text, found in zip(texts, places, strict=True):
        if not len(found):
            raise InputError(f"The text {text!r} has no mask to fill; write <mask> in the place of a word.")
    groups = num_batch_groups(mesh)
    num_rows = -(-min(len(texts), 32) // groups) * groups
    answers: list[list[list[Fill]]] = [[] for _ in texts]
    for numbers in batches_of_like_lengths([len(each) for each in ids], num_rows):
        tokens = padded([ids[number] for number in numbers], num_rows)
        width = -(-max(len(places[number]) for number in numbers) // PLACES_STEP) * PLACES_STEP
        at = np.zeros((num_rows, width), np.int32)
        for row, number in enumerate(numbers):
            at[row, : len(places[number])] = places[number]
        rows = fetched(_likelihoods(network, params, **place_batch({"tokens": tokens, "at": at}, batch_sharding(mesh))))
        for row, number in enumerate(numbers):
            spaces = [
                match.start() == 0 or texts[number][match.start() - 1].isspace()
                for match in MASK.finditer(texts[number])
            ]
            for follows_space, likely in zip(spaces, rows[row], strict=False):
                allowed = usual
                if pieces.has_space.sum() > 1:  # not a vocabulary of bytes, where only one id has a space
                    allowed = allowed & (pieces.has_space == follows_space)
                best = np.argsort(-np.where(allowed, likely, -1.0), kind="stable")[:top].tolist()
                answers[number].append(
                    [
                        Fill(vocabulary.decode([each]).strip(), float(likely[each]), (each,))
                        for each in best
                        if allowed[each]
                    ]
                )
    return answers


@functools.partial(jax.jit, static_argnames=("network",))
def _likelihoods(
    network: Network, params: PyTree, tokens: Int[Array, "B L"], at: Int[Array, "B P"]
) -> Float[Array, "B P V"]:
    batch = {"decoder_input_tokens": tokens, "decoder_target_tokens": tokens, "decoder_predicted_positions": at}
    return jax.nn.softmax(network.apply(params, batch).astype(jnp.float32), axis=-1)


def mask_sampler(
    network: Network, mesh: Mesh, vocabulary: Vocabulary, prompts: Sequence[str]
) -> Callable[[PyTree], dict[str, list[str]]]:
    """Returns a function from the parameters to each prompt's text, its masks filled with the likeliest [pieces]."""

    def texts(params: PyTree) -> dict[str, list[str]]:
        found = {}
        for prompt, fills in zip(prompts, fills_of_masks(network, params, mesh, vocabulary, prompts, 1), strict=True):
            best = iter([f"[{fill[0].text}]" if fill else "[]" for fill in fills])
            found[prompt] = [MASK.sub(lambda _, best=best: next(best), prompt)]
        return found

    return texts
