"""Romanian: span corruption of the RLM corpus, streamed from the hub or read from local files.

For another language copy this file and change the names, the data set and the vocabulary.
"""

from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import FileSource, HubSource
from limba.data.vocabulary import SentencePieceVocabulary

# The published runs' own 64,000 pieces, sentinels included. VOCABULARY in gin replaces it; mT5's is
# gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model. Nothing is read before it is used.
VOCABULARY = SentencePieceVocabulary("gs://myv4-bucket/sentencepiece/ro.model", extra_ids=0)

SOURCES = {
    "rlm_span_corruption_stream": HubSource("dumitrescustefan/rlm", column="text", splits=("train", "validation")),
    "rlm_span_corruption_files": FileSource("rlm/*.jsonl.gz"),
}

for name, source in SOURCES.items():
    TaskRegistry.add(
        name,
        source=source,
        preprocessors=[tokenize_documents, span_corruption],
        output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
    )
