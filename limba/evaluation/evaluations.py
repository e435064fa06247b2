"""What a run evaluates at intervals: its loss, texts for its prompts, and the metrics of texts that it generates."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

from limba.config import InputError, RunConfig
from limba.data.objectives.choice import reads_prefix
from limba.data.objectives.supervised import input_end_of
from limba.data.tasks import Provider
from limba.evaluation import hidden_words
from limba.evaluation.text import TextEvaluation, sampler
from limba.evaluation.validation import loss_evaluation
from limba.model import Network
from limba.sharding.mesh import batch_sharding
from limba.training.checks import check_best_metric
from limba.training.loop import Evaluations


def evaluations_of_run(config: RunConfig, task: Provider, lengths: Mapping[str, int], model: Network) -> Evaluations:
    """Returns the evaluations of a run, on its network's mesh.

    Raises InputError for a metric, prompt or batch that cannot be used, and for a best metric that none of them gives.
    """
    assert model.mesh is not None
    text = TextEvaluation(config, task, lengths, model, model.mesh)
    loss = loss_evaluation(config, task, lengths, model, batch_sharding(model.mesh))

    # Texts are written for the run's own prompts, and for sentences of the validation split with hidden words.
    hidden = hidden_words.sentences(config, task)
    prompts = (*config.evaluation.prompts, *(sentence.masked for sentence in hidden))
    with_hidden = dataclasses.replace(config.evaluation, prompts=prompts)
    vocabulary = task.output_features["targets"].vocabulary
    is_prefix = reads_prefix(task, config.data.task_feature_lengths)
    input_end = input_end_of(task) if config.model.is_decoder_only else None
    samples = sampler(model, model.mesh, vocabulary, with_hidden, is_prefix, input_end)

    # The score of copying the inputs, which generated text should beat.
    copied: Mapping[str, float] = {}
    with contextlib.suppress(InputError):  # a metric that refuses such texts: there is nothing to compare with
        copied = text.copied()

    check_best_metric(config, (*getattr(loss, "names", ()), *text.names))
    words = {sentence.masked: sentence.words for sentence in hidden}
    return Evaluations(loss, samples, text if text.tasks else None, words, copied)
