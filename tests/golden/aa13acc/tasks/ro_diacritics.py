"""Romanian diacritics: text stripped of them on the fly, to be written with them; any monolingual corpus serves.

`fr_capitals_bytes` makes capitals of it too.

`CORPUS` and `COLUMN` in gin replace the corpus. For another language copy a registration below, and change the
language (`limba/data/diacritics.py` has the letters), the names and the corpus.
"""

import seqio
import tensorflow as tf

from limba import text_metrics
from limba.data.diacritics import restore_diacritics
from limba.data.sources import FileSource, HubSource
from limba.data.supervised import SUPERVISED

# mT5's, in which the published model was trained. VOCABULARY in gin replaces it; nothing is read before it is used.
VOCABULARY = seqio.SentencePieceVocabulary("gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model", extra_ids=0)
CORPUS = HubSource("dumitrescustefan/rlm", column="text", splits=("train", "validation"))


def register(name: str, language: str, source: seqio.DataSource, **choices: float) -> None:
    """Registers a task; `choices` are those of `restore_diacritics`: `bytes_per_token` is 1 for bytes."""
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[restore_diacritics(language, **choices), *SUPERVISED],
        output_features={
            "inputs": seqio.Feature(VOCABULARY, dtype=tf.int32),
            "targets": seqio.Feature(VOCABULARY, dtype=tf.int32),
        },
        metric_fns=[text_metrics.diacritics(language), text_metrics.error_rates, text_metrics.chrf],
        shuffle_buffer_size=None,
    )


register("ro_diacritics", "ro", CORPUS)
register("ro_diacritics_partial", "ro", CORPUS, share=0.5)
register("ro_diacritics_bytes", "ro", CORPUS, bytes_per_token=1.0)
register("fr_diacritics", "fr", FileSource("fr/*.jsonl.gz"))
register("fr_diacritics_bytes", "fr", FileSource("fr/*.jsonl.gz"), bytes_per_token=1.0)
register("fr_capitals_bytes", "fr", FileSource("fr/*.jsonl.gz"), bytes_per_token=1.0, capitals=True)
