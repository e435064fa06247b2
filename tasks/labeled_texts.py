"""Your own labeled texts, for encoders: a class of each text, a tag of each word, a score, or pairs of like texts.

    --gin.HEAD=classes --gin.CORPUS='reviews/*.jsonl' --gin.COLUMN="{'inputs': 'review', 'targets': 'stars'}"
    --gin.HEAD=tags --gin.CORPUS="{'train': 'train.conllu'}" --gin.COLUMN="{'inputs': 'form', 'targets': 'upos'}"

`HEAD` says what the targets are; `VOCABULARY` in gin names the vocabulary.
"""

from limba.data.objectives.labels import labeled
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import FileSource
from limba.data.vocabulary import SentencePieceVocabulary

VOCABULARY = SentencePieceVocabulary("vocabulary.model", extra_ids=1)

TaskRegistry.add(
    "labeled_texts",
    source=FileSource("data/*.jsonl", column={"inputs": "text", "targets": "label"}),
    preprocessors=[labeled],
    output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
)
