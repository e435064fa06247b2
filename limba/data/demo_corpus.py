"""English prose that comes with every Python: its language reference, as the help pages of `pydoc`."""

from __future__ import annotations

import json
import os
import pydoc_data.topics
import re
from collections.abc import Iterator

from limba.storage.files import replacing

DOCUMENT_LETTERS = 1_000  # paragraphs are joined up to about this: many documents, some for validation


def pydoc_corpus(path: str | os.PathLike[str]) -> int:
    """Writes the topics of `pydoc_data.topics` as JSON lines {"topic", "text"}; returns the number of documents.

    About 460,000 letters under the PSF licence, with markup. Each document is some paragraphs of one
    topic, in order. The file is written atomically.
    """
    count = 0
    with replacing(path) as file:
        for topic, text in sorted(pydoc_data.topics.topics.items()):
            for document in _documents(text):
                file.write((json.dumps({"topic": topic, "text": document}, ensure_ascii=False) + "\n").encode())
                count += 1
    return count


def _documents(text: str) -> Iterator[str]:
    gathered, letters = [], 0
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        gathered.append(paragraph)
        letters += len(paragraph)
        if letters >= DOCUMENT_LETTERS:
            yield "\n\n".join(gathered)
            gathered, letters = [], 0
    if "".join(gathered).strip():
        yield "\n\n".join(gathered)
