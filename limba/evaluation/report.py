"""Gaps of validation examples, as a run fills them; with them, what `summary` tells of the run."""

from __future__ import annotations

import numpy as np

from limba.config import RunConfig
from limba.data import validation_split
from limba.data.vocabulary.load import num_sentinels, sentinel_ids
from limba.evaluation.summary import plot_loss as plot_loss
from limba.evaluation.summary import summary as summary
from limba.inference.gaps import join_infill, masked_text
from limba.inference.generate import greedy
from limba.inference.load import load
from limba.inference.source import find


def infills(config: RunConfig, num: int = 3) -> list[tuple[str, str, str]]:
    """Returns (text, its gaps in [brackets]; the same with the gaps as the model fills them; with <extra_id_0> …).

    The texts are validation examples of the run; its newest checkpoint fills the gaps.
    """
    source = find(config.model_dir, config)
    trained = load(source, step=max(source.steps), config=config)
    batches = validation_split.validation_batches(trained.task, trained.lengths, config.data, 1)
    if not batches:
        return []
    inputs = batches[0]["encoder_input_tokens"]
    chosen = np.flatnonzero(inputs.any(axis=1))[:num]
    vocabulary = trained.vocabulary
    num_ids, eos_id = vocabulary.vocab_size, int(vocabulary.eos_id)
    length = trained.lengths["targets"]
    filled = np.asarray(greedy(trained.network, trained.params, inputs[chosen], length, num_ids, eos_id))
    sentinels = np.array(sentinel_ids(vocabulary, num_sentinels(vocabulary)))
    return [
        (
            join_infill(inputs[row], batches[0]["decoder_target_tokens"][row], sentinels, vocabulary, eos_id),
            join_infill(inputs[row], filled[i], sentinels, vocabulary, eos_id),
            masked_text(inputs[row], sentinels, vocabulary, eos_id),
        )
        for i, row in enumerate(chosen)
    ]
