"""The validation split, on the mesh: loss, perplexity, accuracy and bits per byte."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from limba.config import InputError, LossConfig, RunConfig, require
from limba.data.objectives.supervised import is_supervised
from limba.data.packing import stream_targets
from limba.data.run_data import validation_batches
from limba.data.tasks import Provider, parts_of
from limba.data.vocabulary.character_sets import SETS, CharacterSets, document_starts
from limba.data.vocabulary.sentinels import begin_id
from limba.data.vocabulary.shifted import StreamVocabulary, offset_of
from limba.data.vocabulary.special_ids import of_run
from limba.data.vocabulary.spelling import has_dummy_space, piece_bytes, piece_texts
from limba.model import Batch, Network
from limba.model.trees import Parameters
from limba.sharding.agreement import compiled_together
from limba.sharding.mesh import num_batch_groups
from limba.training import losses
from limba.training.placement import place_batch
from limba.training.step import microbatches

logger = logging.getLogger(__name__)

Figures = dict[str, float]

NAMES = ("loss", "cross_entropy", "accuracy", "perplexity", "bits_per_byte", "target_tokens")


@dataclass(frozen=True)
class LossEvaluation:
    """A function from parameters to the figures of the validation split, and their names."""

    names: tuple[str, ...]
    figures_of: Callable[[Parameters], Figures]

    def __call__(self, params: Parameters) -> Figures:
        """Returns the figures."""
        return self.figures_of(params)


def loss_evaluation(
    config: RunConfig, task: Provider, lengths: Mapping[str, int], model: Network, sharding: jax.sharding.Sharding
) -> LossEvaluation | None:
    """Returns the evaluation of the validation split, or None if the split is empty.

    Bits per byte is the targets' cross entropy divided by the UTF-8 bytes that they spell, so models with different
    vocabularies are comparable. The space that SentencePiece puts before each document is not counted. By character
    set, a token's cross entropy is divided evenly among its bytes; a token that spells nothing, such as the end of
    sequence, counts as "other". So the mean of `bits_per_byte/…`, weighted by `bytes/…`, is `bits_per_byte`. A
    vocabulary whose pieces do not say their bytes gives none of these figures, which is logged.
    """
    size = config.evaluation.batch_size
    groups = num_batch_groups(model.mesh)
    require(
        size is None or size % groups == 0,
        "EvaluationConfig.batch_size",
        f"is {size}, which does not divide over {groups} groups of devices (the mesh's data x fsdp); give a multiple.",
    )
    batches = validation_batches(task, lengths, config.data, config.evaluation.num_batches, size)
    if not batches:
        return None
    reason = _reason_without_bytes(task, config.model.vocab_size)
    if reason is not None:
        logger.warning("The validation has no bits per byte: %s", reason)
    character_sets, starts, num_bytes = spelling(config, task, batches)
    sums_of = jit_evaluation(model, config.loss, config.num_microbatches if size is None else 1)
    sums_of = compiled_together(sums_of, "the evaluation", config.step_timeout_seconds)

    def place(batch: Mapping[str, np.ndarray], begun: np.ndarray) -> Batch:
        counts = character_sets.counts(stream_targets(batch), begun)
        return place_batch({**batch, "character_counts": counts}, sharding)

    def evaluate(params: Parameters) -> Figures:
        began = time.monotonic()
        sums = jax.device_get([sums_of(params, place(*pair)) for pair in zip(batches, starts, strict=True)])
        total = jax.tree.map(lambda *parts: np.sum(parts, axis=0, dtype=np.float64), *sums)
        nats_by_set = total.pop("nats_by_set")
        numbers = {name: float(value) for name, value in total.items()}
        figures = _figures(numbers, nats_by_set, num_bytes if reason is None else None)
        return {**figures, "seconds": time.monotonic() - began}

    # The names that `evaluate` gives, known before the first evaluation: a run checks its best metric against them.
    names = _names_of_figures(num_bytes if reason is None else None)
    return LossEvaluation((*names, "seconds"), evaluate)


def _figures(total: Mapping[str, float], nats_by_set: np.ndarray, num_bytes: np.ndarray | None) -> Figures:
    """Returns the figures of the sums over all batches; the last two are by character set.

    `num_bytes` is None where the vocabulary does not say how many bytes a token spells.
    """
    nats = total["nats"]
    tokens = total["tokens"]
    figures = {
        "loss": total["loss"] / tokens,
        "cross_entropy": nats / tokens,
        "accuracy": total["correct"] / tokens,
        "perplexity": math.exp(min(nats / tokens, 700.0)),  # exp overflows float64 above 709
    }
    if num_bytes is not None:
        figures["bits_per_byte"] = nats / math.log(2) / max(int(num_bytes.sum()), 1)
    figures["target_tokens"] = int(tokens)
    if num_bytes is not None:
        for character_set, nats_of_set, count in zip(SETS, nats_by_set, num_bytes, strict=True):
            if count:
                bits_name, bytes_name = _names_of(character_set)
                figures[bits_name] = nats_of_set / math.log(2) / count
                figures[bytes_name] = int(count)
    return figures


def _names_of_figures(num_bytes: np.ndarray | None) -> list[str]:
    """Returns the names of what `_figures` gives."""
    names: list[str] = list(NAMES)
    if num_bytes is None:
        names.remove("bits_per_byte")
        return names
    for character_set, count in zip(SETS, num_bytes, strict=True):
        if count:
            names += _names_of(character_set)
    return names


def _reason_without_bytes(task: Provider, num_rows: int) -> str | None:
    """Returns why the targets' pieces do not say how many bytes they are; None if they do."""
    try:
        vocabulary = task.output_features["targets"].vocabulary
        piece_bytes(vocabulary, num_rows + offset_of(vocabulary))
    except InputError as error:
        return str(error)
    return None


def spelling(
    config: RunConfig, task: Provider, batches: list[dict[str, np.ndarray]]
) -> tuple[CharacterSets, list[np.ndarray], np.ndarray]:
    """Returns the character sets of the vocabulary's tokens, where documents begin in each batch, and bytes by set.

    The tokens are the stream's, so that 0 is padding.
    """
    vocabulary = task.output_features["targets"].vocabulary
    pieces = piece_texts(vocabulary, config.model.vocab_size + offset_of(vocabulary))
    batches = [{**batch, "decoder_target_tokens": stream_targets(batch)} for batch in batches]
    is_pair = all(is_supervised(part) for part in parts_of(task))
    is_one_sequence = config.data.sequence_length is not None
    if isinstance(vocabulary, StreamVocabulary):
        end = vocabulary.ends[-1]
    else:
        end = of_run(vocabulary, config.model).ends[0]
    starts = document_starts(batches, end, is_pair, is_one_sequence, begin_id(vocabulary))
    sets = CharacterSets(pieces, has_dummy_space(vocabulary, pieces))
    num_bytes = [
        sets.num_bytes(batch["decoder_target_tokens"], batch["decoder_loss_weights"], begun)
        for batch, begun in zip(batches, starts, strict=True)
    ]
    return sets, starts, np.sum(num_bytes, axis=0)


def _names_of(character_set: str) -> tuple[str, str]:
    return f"bits_per_byte/{character_set}", f"bytes/{character_set}"


def jit_evaluation(
    model: Network, loss: LossConfig, num_microbatches: int
) -> Callable[[Parameters, Batch], dict[str, Array]]:
    """Returns the jitted `evaluation_sums` of one batch, computed in parts whose logits fit on a device."""

    def evaluate(params: Parameters, batch: Batch) -> dict[str, Array]:
        rows, length = batch.get("decoder_predicted_positions", batch["decoder_target_tokens"]).shape
        parts = microbatches(batch, _num_parts(model, rows, length, num_microbatches))
        sums = jax.lax.map(lambda part: evaluation_sums(model, loss, params, part), parts)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), sums)

    return jax.jit(evaluate)


def evaluation_sums(model: Network, loss: LossConfig, params: Parameters, batch: Batch) -> dict[str, Array]:
    """Returns `loss_sums` without dropout, and `nats_by_set` [S], the plain cross entropy by character set.

    The batch's `character_counts` [B, Q, S] are the bytes that each target has in each of the S sets: its nats are
    divided evenly among its bytes. An encoder's targets are the tokens at `decoder_predicted_positions`.
    """
    names = ("decoder_target_tokens", "decoder_loss_weights", "character_counts")
    targets, weights, counts = losses.at_predicted(batch, *(batch[name] for name in names))
    weights = weights.astype(jnp.float32)
    counts = counts.astype(jnp.float32)
    trained, plain, correct = losses.cross_entropy(model.apply(params, batch), targets, loss)
    nats_per_byte = plain * weights / jnp.sum(counts, axis=-1)
    sums = losses.weighted_sums((trained, plain, correct), weights)
    return {**sums, "nats_by_set": jnp.einsum("bq,bqs->s", nats_per_byte, counts)}


def _num_parts(model: Network, rows: int, length: int, num_microbatches: int) -> int:
    """Returns the number of parts of a batch: as few as fit, at least the micro-batches, at most a row per device."""
    groups = num_batch_groups(model.mesh)

    def is_too_large(num_parts: int) -> bool:
        size = losses.logits_bytes(rows // num_parts, length, model.config.vocab_size, model.mesh)
        return size > losses.WHOLE_LOGITS_BYTES

    num_parts = num_microbatches
    while is_too_large(num_parts) and rows % (2 * num_parts * groups) == 0:
        num_parts *= 2
    return num_parts
