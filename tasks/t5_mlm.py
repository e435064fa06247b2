"""T5's span corruption of any files, which the run's CORPUS and VOCABULARY name."""

from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import FileSource
from limba.data.vocabulary import SentencePieceVocabulary

# VOCABULARY and CORPUS in gin replace both; neither is read before it is used.
VOCABULARY = SentencePieceVocabulary("vocabulary.model", extra_ids=100)

TaskRegistry.add(
    "t5_mlm",
    source=FileSource("corpus/*.jsonl"),
    preprocessors=[tokenize_documents, span_corruption],
    output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
)
