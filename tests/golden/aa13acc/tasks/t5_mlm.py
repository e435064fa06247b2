"""T5's span corruption of any files, as the run's CORPUS and VOCABULARY name them."""

import seqio
import tensorflow as tf

from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.sources import FileSource

# VOCABULARY and CORPUS in gin replace both; neither is read before it is used.
VOCABULARY = seqio.SentencePieceVocabulary("vocabulary.model", extra_ids=100)

seqio.TaskRegistry.add(
    "t5_mlm",
    source=FileSource("corpus/*.jsonl"),
    preprocessors=[tokenize_documents, span_corruption],
    output_features={
        "inputs": seqio.Feature(VOCABULARY, dtype=tf.int32),
        "targets": seqio.Feature(VOCABULARY, dtype=tf.int32),
    },
    shuffle_buffer_size=None,
)
