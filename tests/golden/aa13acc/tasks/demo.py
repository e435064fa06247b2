"""The demonstration: span corruption of any files, by default those that launch/demo.sh writes."""

import seqio
import tensorflow as tf

from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.sources import FileSource

# VOCABULARY and CORPUS in gin replace both; neither is read before it is used.
VOCABULARY = seqio.SentencePieceVocabulary("demo/vocabulary.model", extra_ids=100)
SOURCE = FileSource("demo/corpus.jsonl", validation_percent=5.0)

seqio.TaskRegistry.add(
    "demo_span_corruption",
    source=SOURCE,
    preprocessors=[tokenize_documents, span_corruption],
    output_features={
        "inputs": seqio.Feature(VOCABULARY, dtype=tf.int32),
        "targets": seqio.Feature(VOCABULARY, dtype=tf.int32),
    },
    shuffle_buffer_size=None,
)
