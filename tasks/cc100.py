"""CC-100 (Conneau et al. 2020, arXiv:1911.02116), Japanese web text by lines, for language models.

Read from the hub's own files, or from TensorFlow Datasets below TFDS_DATA_DIR, where TFDS 4.8 wrote it as
`huggingface:cc100/lang=ja`. Today's TFDS cannot make it: that ran a script of the hub.
"""

from limba.data.objectives import causal_lm, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import HubSource, TfdsSource
from limba.data.vocabulary import SentencePieceVocabulary

# VOCABULARY in gin replaces it; gin/runs/pretrain_lm.gin trains one.
VOCABULARY = SentencePieceVocabulary("cc100/ja.model", extra_ids=0)
MIN_LETTERS = 10  # of a line; shorter ones are menus and fragments
SLICES = {"train": "train[:98%]", "validation": "train[98%:]"}  # as published; the data set has only this split


def line(text: bytes) -> list[bytes]:
    """Returns the line without line ends, or [] if it is too short.

    >>> line("今日は天気がとても良い。\\n".encode())[0].decode(), line("戻る\\n".encode())
    ('今日は天気がとても良い。', [])
    """
    joined = text.decode().replace("\n", "").strip()
    return [joined.encode()] if len(joined) >= MIN_LETTERS else []


SOURCES = {
    # Or where TFDS 4.8 wrote `huggingface:cc100/lang=ja`.
    "cc100_ja_causal_lm": TfdsSource(
        "cc100/ja",
        SLICES,
        rewrite=line,
        community="huggingface__cc100/*ja*",
        instead="read the hub's range3/cc100-ja by the task cc100_ja_causal_lm_stream",
    ),
    "cc100_ja_causal_lm_stream": HubSource("range3/cc100-ja", splits=("train",), rewrite=line),
}

for name, source in SOURCES.items():
    TaskRegistry.add(
        name,
        source=source,
        preprocessors=[tokenize_documents, causal_lm],
        output_features=dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY)),
    )
