"""The pieces that an encoder would write for the masks of a text, with their probabilities."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from limba.config import InputError
from limba.data.vocabulary.around_gaps import encode_parts
from limba.data.vocabulary.published import PublishedVocabulary
from limba.data.vocabulary.sentinels import mask_id
from limba.data.vocabulary.special_ids import SpecialIds, of_run
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.inference import generate
from limba.inference.gap_pieces import Fill, Pieces, pieces_of
from limba.model import Network
from limba.sharding.mesh import batch_sharding, num_batch_groups
from limba.training.placement import place_batch

MASK = re.compile(r"<mask>|\[MASK\]|<\|mask\|>|<extra_id_\d+>|_{3,}")  # the ways to write a mask
MASKS_STEP = 8  # masks of a row are padded to a multiple, so that few programs are compiled
TEXTS_AT_ONCE = 32


def masked_ids(
    text: str, vocabulary: Vocabulary, special: SpecialIds, length: int | None = None
) -> Int[np.ndarray, " L"]:
    """Returns a text's ids as an encoder reads them, from <cls>, if there is one, to the end; at most `length`.

    <mask>, a <extra_id_0> and ___ are each one mask. What follows one without a space is its word's continuation. A
    folder for transformers reads only its own mask as one, as it does there.
    """
    if isinstance(vocabulary, PublishedVocabulary):
        return np.asarray(special.framed(vocabulary.encode(text), length), np.int32)
    mask = mask_of(vocabulary, special)
    first, *others = encode_parts(vocabulary, MASK.split(text))
    ids = list(first)
    for part in others:
        ids.append(mask)
        ids += part
    return np.asarray(special.framed(ids, length), np.int32)


def mask_of(vocabulary: Vocabulary, special: SpecialIds) -> int:
    """Returns the mask's id; InputError for a model that has none."""
    if special.mask is not None:
        return special.mask
    if isinstance(vocabulary, PublishedVocabulary):
        raise InputError(
            f"The tokenizer {vocabulary.path} has no mask (mask_token), so no words can be hidden; call `encode`"
            " for vectors."
        )
    return mask_id(vocabulary)


def fills_of_masks(
    network: Network,
    params: PyTree,
    mesh: Mesh,
    vocabulary: Vocabulary,
    special: SpecialIds,
    texts: Sequence[str],
    top: int = 5,
    deadline: generate.Deadline | None = None,
) -> list[list[list[Fill]]]:
    """Returns the `top` likeliest pieces of each mask of each text, best first, with the encoder's probabilities.

    A fill is one piece with a letter or digit; after a space it begins with one, else it continues its word. Each mask
    is filled as if the others stayed. Raises InputError for a text without a mask, TimeIsOverError after the deadline.
    """
    pieces = pieces_of(vocabulary, network.config.vocab_size, special)
    mask = mask_of(vocabulary, special)
    texts, pattern = _with_own_masks(texts, vocabulary)
    ids = [masked_ids(text, vocabulary, special) for text in texts]
    positions = [np.flatnonzero(text_ids == mask).astype(np.int32) for text_ids in ids]
    _check(texts, ids, positions, network.config.max_length)
    groups = num_batch_groups(mesh)
    num_rows = -(-min(max(1, len(texts)), TEXTS_AT_ONCE) // groups) * groups
    fills_of_texts: list[list[list[Fill]]] = [[] for _ in texts]
    for numbers in generate.batches_of_like_lengths([len(text_ids) for text_ids in ids], num_rows):
        if deadline is not None:
            deadline.check()
        rows = [ids[number] for number in numbers]
        most_masks = max(len(positions[number]) for number in numbers)
        at = np.zeros((num_rows, -(-most_masks // MASKS_STEP) * MASKS_STEP), np.int32)
        for row, number in enumerate(numbers):
            at[row, : len(positions[number])] = positions[number]
        features = {
            "tokens": generate.padded(rows, num_rows),
            "is_read": generate.read_mask(rows, num_rows),
            "at": at,
        }
        placed = place_batch(features, batch_sharding(mesh))
        probabilities = generate.fetched(_probabilities(network, params, **placed))
        for row, number in enumerate(numbers):
            text = texts[number]
            # Not strict: the row has probabilities for its padding too.
            for match, of_mask in zip(pattern.finditer(text), probabilities[row], strict=False):
                fills_of_texts[number].append(_likeliest(of_mask, text[: match.start()], pieces, top))
    return fills_of_texts


def _with_own_masks(texts: Sequence[str], vocabulary: Vocabulary) -> tuple[Sequence[str], re.Pattern[str]]:
    """Returns the texts, and what a mask is in them. A folder for transformers has its own name for it.

    Where a text has that name, <mask> and the other ways to write a mask are plain text in it, as in transformers.
    """
    name = vocabulary.mask_name if isinstance(vocabulary, PublishedVocabulary) else None
    if name is None:
        return texts, MASK
    own_mask = str(name)
    with_own = [text if own_mask in text else MASK.sub(lambda _: own_mask, text) for text in texts]
    return with_own, re.compile(re.escape(own_mask))


def _check(texts: Sequence[str], ids: Sequence[np.ndarray], positions: Sequence[np.ndarray], max_length: int) -> None:
    """Raises InputError for the first text without a mask, and for one that is longer than the encoder reads."""
    for text, masks in zip(texts, positions, strict=True):
        if not len(masks):
            raise InputError(f"The text {text!r} has no mask to fill; write <mask> in place of a word.")
    longest = max(map(len, ids), default=0)
    if longest > max_length:
        raise InputError(f"A text has {longest:,} tokens, and the encoder reads {max_length:,}; give a shorter one.")


def _likeliest(probabilities: Float[np.ndarray, " V"], text_before: str, pieces: Pieces, top: int) -> list[Fill]:
    """Returns the `top` likeliest pieces that may follow this text, best first."""
    allowed = pieces.is_text & pieces.has_letter
    if pieces.tell_spaces:
        follows_space = not text_before or text_before[-1].isspace()
        allowed = allowed & (pieces.has_space == follows_space)
    best = np.argsort(-np.where(allowed, probabilities, -1.0), kind="stable")[:top]
    fills = []
    for piece in best.tolist():
        if allowed[piece]:
            fills.append(Fill(pieces.vocabulary.decode([piece]).strip(), float(probabilities[piece]), (piece,)))
    return fills


@functools.partial(jax.jit, static_argnames=("network",))
def _probabilities(
    network: Network, params: PyTree, tokens: Int[Array, "B L"], is_read: Int[Array, "B L"], at: Int[Array, "B P"]
) -> Float[Array, "B P V"]:
    """Returns the probability of each id at the positions `at`."""
    batch = {"decoder_input_tokens": tokens, "decoder_target_tokens": is_read, "decoder_predicted_positions": at}
    return jax.nn.softmax(network.apply(params, batch).astype(jnp.float32), axis=-1)


def mask_sampler(
    network: Network, mesh: Mesh, vocabulary: Vocabulary, prompts: Sequence[str]
) -> Callable[[PyTree], dict[str, list[str]]]:
    """Returns a function from the parameters to each prompt's text, its masks filled with the likeliest [pieces]."""
    special = of_run(vocabulary, network.config)

    def texts(params: PyTree) -> dict[str, list[str]]:
        filled = {}
        fills_of_prompts = fills_of_masks(network, params, mesh, vocabulary, special, prompts, 1)
        with_own, mask = _with_own_masks(prompts, vocabulary)
        for prompt, text, fills_of_gaps in zip(prompts, with_own, fills_of_prompts, strict=True):
            best = iter([f"[{fills[0].text}]" if fills else "[]" for fills in fills_of_gaps])
            filled[prompt] = [mask.sub(lambda _, best=best: next(best), text)]
        return filled

    return texts
