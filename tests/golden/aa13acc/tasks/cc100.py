"""CC-100 (Conneau et al. 2020, arXiv:1911.02116), Japanese web text by lines, for language models.

From TensorFlow Datasets below TFDS_DATA_DIR, or from the hub's own files. TFDS has no code for it; this makes it there:
`python -m launch.prepare --task=cc100_ja_causal_lm_stream --tfds=cc100/ja --data_dir=TFDS_DATA_DIR`.
"""

import seqio
import tensorflow as tf

from limba.data.objectives import causal_lm, tokenize_documents
from limba.data.records import TfdsSource
from limba.data.sources import HubSource

# VOCABULARY in gin replaces it; gin/runs/pretrain_lm.gin has one trained.
VOCABULARY = seqio.SentencePieceVocabulary("cc100/ja.model", extra_ids=0)
MIN_LETTERS = 10  # of a line; shorter ones are menus and rests
SLICES = {"train": "train[:98%]", "validation": "train[98%:]"}  # as published; it has no other split


def line(text: bytes) -> list[bytes]:
    """Returns the line without line ends, or nothing where it is short.

    >>> line("今日は天気がとても良い。\\n".encode())[0].decode(), line("戻る\\n".encode())
    ('今日は天気がとても良い。', [])
    """
    joined = text.decode().replace("\n", "").strip()
    return [joined.encode()] if len(joined) >= MIN_LETTERS else []


SOURCES = {
    "cc100_ja_causal_lm": TfdsSource("cc100/ja", SLICES, rewrite=line),
    "cc100_ja_causal_lm_stream": HubSource("range3/cc100-ja", splits=("train",), rewrite=line),
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
