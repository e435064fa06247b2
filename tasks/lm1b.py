"""The One Billion Word Benchmark (Chelba et al. 2013, arXiv:1312.3005), English sentences, for language models.

Read from TensorFlow Datasets below TFDS_DATA_DIR, where `tfds.load("lm1b", data_dir=…)` puts it, or from the hub.
"""

from limba.data.objectives import causal_lm, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import HubSource, TfdsSource
from limba.data.vocabulary import SentencePieceVocabulary

# VOCABULARY in gin replaces it; gin/runs/pretrain_lm.gin trains one.
VOCABULARY = SentencePieceVocabulary("lm1b/vocabulary.model", extra_ids=0)

SOURCES = {
    "lm1b_causal_lm": TfdsSource(
        "lm1b",
        {"train": "train", "validation": "test"},
        instead="read the hub's dvruette/lm1b by the task lm1b_causal_lm_stream",
    ),
    "lm1b_causal_lm_stream": HubSource("dvruette/lm1b", validation_split="test"),
}

for name, source in SOURCES.items():
    TaskRegistry.add(
        name,
        source=source,
        preprocessors=[tokenize_documents, causal_lm],
        output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
    )
