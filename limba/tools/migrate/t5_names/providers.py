"""The names of `t5.data`: vocabularies, features, registries and rates, nearly all of them seqio's."""

from __future__ import annotations

from typing import Any

import seqio

ByteVocabulary = seqio.ByteVocabulary
Feature = seqio.Feature
FunctionDataSource = seqio.FunctionDataSource
Mixture = seqio.Mixture
MixtureRegistry = seqio.MixtureRegistry
PassThroughVocabulary = seqio.PassThroughVocabulary
SentencePieceVocabulary = seqio.SentencePieceVocabulary
Task = seqio.Task
TaskRegistry = seqio.TaskRegistry
TextLineDataSource = seqio.TextLineDataSource
TfdsDataSource = seqio.TfdsDataSource
Vocabulary = seqio.Vocabulary
get_mixture_or_task = seqio.get_mixture_or_task
map_over_dataset = seqio.map_over_dataset
DEFAULT_SPM_PATH = "gs://t5-data/vocabs/cc_all.32000/sentencepiece.model"
DEFAULT_EXTRA_IDS = 100


def get_default_vocabulary() -> seqio.SentencePieceVocabulary:
    """Returns T5's vocabulary of 32,000 pieces and 100 sentinels; nothing is read before it is used."""
    return seqio.SentencePieceVocabulary(DEFAULT_SPM_PATH, DEFAULT_EXTRA_IDS)


def rate_num_examples(task: seqio.Task, maximum: int | None = None, **choices: Any) -> float:
    """Returns a mixture's rate by the task's number of examples (Raffel et al. 2020, section 3.5.2)."""
    return seqio.mixing_rate_num_examples(task, maximum, **choices)


def rate_unsupervised(task: seqio.Task, value: float = 1e6) -> float:
    """Returns a fixed rate, for an unsupervised task beside others."""
    return value
