"""Restoring diacritics, in Romanian and French: inputs are text without them, made from any monolingual corpus.

In `fr_capitals_bytes` the inputs are in capital letters too.

`CORPUS` and `COLUMN` in gin replace the corpus. For another language copy a registration below and change the
language (`limba/data/objectives/diacritics.py` has the letters of 34), the names and the corpus.
"""

from typing import Any

from limba.data import metrics as text_metrics
from limba.data.objectives import SUPERVISED, restore_diacritics
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import FileSource, HubSource, UnitSource
from limba.data.vocabulary import SentencePieceVocabulary

# mT5's, which the published model has. VOCABULARY in gin replaces it; nothing is read before it is used.
VOCABULARY = SentencePieceVocabulary("gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model", extra_ids=0)
CORPUS = HubSource("dumitrescustefan/rlm", column="text", splits=("train", "validation"))


def register(name: str, language: str, source: UnitSource, **choices: Any) -> None:
    """Registers a task; `choices` are arguments of `restore_diacritics`, such as `bytes_per_token`, 1 for bytes."""
    TaskRegistry.add(
        name,
        source=source,
        preprocessors=[restore_diacritics(language, **choices), *SUPERVISED],
        output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
        metric_fns=[text_metrics.diacritics(language), text_metrics.error_rates, text_metrics.chrf],
    )


register("ro_diacritics", "ro", CORPUS)
register("ro_diacritics_partial", "ro", CORPUS, share=0.5)
register("ro_diacritics_bytes", "ro", CORPUS, bytes_per_token=1.0)
# The published recipe's corpus. Its inputs are ASCII: other languages' letters, quotes and dashes are plain, too.
DIACRITIC = HubSource("dumitrescustefan/diacritic", column="text", splits=("train", "validation"))
register("ro_diacritics_published", "ro", DIACRITIC, bytes_per_token=None, transliterate="ascii")
register("fr_diacritics", "fr", FileSource("fr/*.jsonl.gz"))
register("fr_diacritics_bytes", "fr", FileSource("fr/*.jsonl.gz"), bytes_per_token=1.0)
register("fr_capitals_bytes", "fr", FileSource("fr/*.jsonl.gz"), bytes_per_token=1.0, capitals=True)
