"""Wiki-40B (Guo et al. 2020), Wikipedia articles, for language models: paragraph by paragraph, or whole.

Read from TensorFlow Datasets below TFDS_DATA_DIR, where `tfds.load("wiki40b/ja", data_dir=…)` puts it, or from the
hub. For another of its 40 languages add its code to LANGUAGES.
"""

import itertools

from limba.data.objectives import causal_lm, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import HubSource, TfdsSource
from limba.data.vocabulary import SentencePieceVocabulary

LANGUAGES = ("ja",)
MIN_LETTERS = 10  # of a paragraph, as published for Japanese
PARAGRAPH = "_START_PARAGRAPH_"
MARKERS = ("_START_ARTICLE_", "_START_SECTION_", PARAGRAPH)  # each is the line before its text
NEWLINE = "_NEWLINE_"  # between the lines of one paragraph


def paragraphs(text: bytes) -> list[bytes]:
    """Returns an article's paragraphs of MIN_LETTERS or more, without titles.

    >>> paragraphs(b"\\n_START_ARTICLE_\\nSea\\n_START_PARAGRAPH_\\nThe sea is salt._NEWLINE_Deep._NEWLINE_It is wide.")
    [b'The sea is salt.', b'It is wide.']
    """
    lines = text.decode().split("\n")
    kept = []
    for before, after in itertools.pairwise(lines):
        if before.strip() != PARAGRAPH:
            continue
        for line in after.split(NEWLINE):
            line = line.strip()
            if len(line) >= MIN_LETTERS:
                kept.append(line.encode())
    return kept


def article(text: bytes) -> list[bytes]:
    """Returns the whole article as one document: title, sections and paragraphs, each on its own lines.

    >>> article(b"\\n_START_ARTICLE_\\nSea\\n_START_PARAGRAPH_\\nThe sea is salt._NEWLINE_It is wide.")
    [b'Sea\\nThe sea is salt.\\nIt is wide.']
    """
    lines = text.decode().replace(NEWLINE, "\n").split("\n")
    kept = [line.strip() for line in lines if line.strip() and line.strip() not in MARKERS]
    return ["\n".join(kept).encode()] if kept else []


for language in LANGUAGES:
    # VOCABULARY in gin replaces it; gin/runs/pretrain_lm.gin trains one.
    vocabulary = SentencePieceVocabulary(f"wiki40b/{language}.model", extra_ids=0)
    # TFDS copies what Google has prepared; it cannot make it itself without Apache Beam.
    instead = f"read the hub's google/wiki40b by the task wiki40b_{language}_causal_lm_stream"
    sources = {
        f"wiki40b_{language}_causal_lm": TfdsSource(f"wiki40b/{language}", rewrite=paragraphs, instead=instead),
        f"wiki40b_{language}_articles_causal_lm": TfdsSource(f"wiki40b/{language}", rewrite=article, instead=instead),
        f"wiki40b_{language}_causal_lm_stream": HubSource("google/wiki40b", name=language, rewrite=paragraphs),
    }
    for task_name, source in sources.items():
        TaskRegistry.add(
            task_name,
            source=source,
            preprocessors=[tokenize_documents, causal_lm],
            output_features=dict.fromkeys(("inputs", "targets"), Feature(vocabulary)),
        )
