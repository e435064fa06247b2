"""The demo: span corruption of any files, by default those that launch/demo.sh writes."""

from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import FileSource
from limba.data.vocabulary import SentencePieceVocabulary

# VOCABULARY and CORPUS in gin replace both; neither is read before it is used.
VOCABULARY = SentencePieceVocabulary("demo/vocabulary.model", extra_ids=100)
SOURCE = FileSource("demo/corpus.jsonl", validation_percent=5.0)

TaskRegistry.add(
    "demo_span_corruption",
    source=SOURCE,
    preprocessors=[tokenize_documents, span_corruption],
    output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
)
