"""The tasks of benchmarks.kill: a mixture, and a source that is a function. They read the file KILL_CORPUS."""

from __future__ import annotations

import os
from typing import Any

from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.registry import Feature, MixtureRegistry, TaskRegistry
from limba.data.sources import FileSource
from limba.data.vocabulary import SentencePieceVocabulary

CORPUS = os.environ["KILL_CORPUS"]
VOCABULARY = SentencePieceVocabulary(os.environ["KILL_VOCABULARY"], extra_ids=100)
SOURCE = FileSource(CORPUS, validation_percent=5.0)
FEATURES = dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY))

TaskRegistry.add("killed_spans", SOURCE, FEATURES, [tokenize_documents, span_corruption])
# The same text in another order and with other gaps, which follow from the name.
TaskRegistry.add("killed_others", SOURCE, FEATURES, [tokenize_documents, span_corruption])
MixtureRegistry.add("killed_mixture", [("killed_spans", 3.0), ("killed_others", 1.0)])


def add_function() -> None:
    """Registers `killed_function`, whose source is a function of TensorFlow's; imports seqio and TensorFlow."""
    import seqio
    import tensorflow as tf

    from limba.data.bridge.seqio_objects import vocabulary_as_seqio

    def dataset_fn(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        del shuffle_files, seed
        text = tf.TensorSpec((), tf.string)
        documents = lambda: ({"text": document} for document in SOURCE.texts(split))
        return tf.data.Dataset.from_generator(documents, output_signature={"text": text})

    source: Any = seqio.FunctionDataSource(dataset_fn, splits=("train", "validation"))  # seqio's own type is narrower
    seqio.TaskRegistry.add(
        "killed_function",
        source=source,
        preprocessors=[tokenize_documents, span_corruption],
        output_features=dict.fromkeys(("inputs", "targets"), seqio.Feature(vocabulary_as_seqio(VOCABULARY))),
    )


if os.environ.get("KILL_FUNCTION"):
    add_function()
