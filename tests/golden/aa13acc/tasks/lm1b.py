"""The One Billion Word Benchmark (Chelba et al. 2013, arXiv:1312.3005), English sentences, for language models.

From TensorFlow Datasets below TFDS_DATA_DIR (`python -m launch.prepare --tfds=lm1b` makes it), or from the hub.
"""

import seqio
import tensorflow as tf

from limba.data.objectives import causal_lm, tokenize_documents
from limba.data.records import TfdsSource
from limba.data.sources import HubSource

# VOCABULARY in gin replaces it; gin/runs/pretrain_lm.gin has one trained.
VOCABULARY = seqio.SentencePieceVocabulary("lm1b/vocabulary.model", extra_ids=0)

SOURCES = {
    "lm1b_causal_lm": TfdsSource("lm1b", {"train": "train", "validation": "test"}),
    "lm1b_causal_lm_stream": HubSource("dvruette/lm1b", validation_split="test"),
}

for name, source in SOURCES.items():
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[tokenize_documents, causal_lm],
        output_features={
            "inputs": seqio.Feature(VOCABULARY, dtype=tf.int32),
            "targets": seqio.Feature(VOCABULARY, dtype=tf.int32),
        },
        shuffle_buffer_size=None,
    )
