"""The demo's text and tasks: gaps in English prose, which a T5 fills, and spaces, which a ByT5 puts back.

Any files may be read in their place. Python brings the English of the demo, so that nothing is downloaded:

    python -m tasks.demo runs/demo/corpus.jsonl
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

from limba.data import metrics as text_metrics
from limba.data.dataset import TEXT, Dataset, preprocessor
from limba.data.objectives import SUPERVISED, span_corruption, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import FileSource
from limba.data.vocabulary import ByteVocabulary, SentencePieceVocabulary
from limba.storage.files import replacing

# VOCABULARY and CORPUS in gin replace both; neither is read before it is used.
VOCABULARY = SentencePieceVocabulary("demo/vocabulary.model", extra_ids=100)
SOURCE = FileSource("demo/corpus.jsonl", validation_percent=5.0)

DOCUMENT_LETTERS = 1_000  # paragraphs are joined up to about this: many documents, some for validation
PARAGRAPH = re.compile(r"\n\s*\n")
SHORTEST_PARAGRAPH = 80  # letters; what is shorter is a heading, or one line about a function
LETTERS_SHARE = 0.96  # of a paragraph of prose at least; the rest are digits, brackets and signs of programs
LEAST_WORDS = 3  # of a phrase; many phrases of two words are in every text
PHRASE_LETTERS = (14, 18, 22)  # of a phrase at most, in turn, so that a model sees phrases of each length
WORDS = re.compile(r"[a-z]+(?: [a-z]+)+")
SHINGLE_WORDS = 6  # two paragraphs that have so many words in a row in common are near-duplicates
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "pydoc_data", "lib2to3"}


def pydoc_corpus(path: str | os.PathLike[str]) -> int:
    """Writes the topics of `pydoc_data.topics` as JSON lines {"topic", "text"}; returns the number of documents.

    About 460,000 letters under the PSF licence, with markup. Each document is some paragraphs of one
    topic, in order. The file is written atomically.
    """
    count = 0
    with replacing(path) as file:
        for topic, text in _topics():
            for document in _documents(PARAGRAPH.split(text.strip("\n"))):
                file.write((json.dumps({"topic": topic, "text": document}, ensure_ascii=False) + "\n").encode())
                count += 1
    return count


def prose_corpus(path: str | os.PathLike[str]) -> int:
    """Writes the running prose of Python's language reference and library as JSON lines; returns the documents.

    About 800,000 letters under the PSF licence: paragraphs of whole sentences, without tables, programs and markup. A
    paragraph that shares SHINGLE_WORDS words in a row with an earlier one is left out, so that no text for validation
    has been read in training.
    """
    read: set[tuple[str, ...]] = set()
    count = 0
    with replacing(path) as file:
        for topic, texts in _sources():
            paragraphs = [paragraph for text in texts for paragraph in _prose(text) if _is_new(paragraph, read)]
            for document in _documents(paragraphs):
                file.write((json.dumps({"topic": topic, "text": document}, ensure_ascii=False) + "\n").encode())
                count += 1
    return count


def _topics() -> list[tuple[str, str]]:
    import pydoc_data.topics

    return sorted(pydoc_data.topics.topics.items())


def _documents(paragraphs: list[str]) -> Iterator[str]:
    """Yields the paragraphs in order, joined to documents of about DOCUMENT_LETTERS."""
    gathered: list[str] = []
    letters = 0
    for paragraph in paragraphs:
        gathered.append(paragraph)
        letters += len(paragraph)
        if letters >= DOCUMENT_LETTERS:
            yield "\n\n".join(gathered)
            gathered = []
            letters = 0
    if "".join(gathered).strip():
        yield "\n\n".join(gathered)


def _sources() -> Iterator[tuple[str, list[str]]]:
    """Yields each topic of the language reference, then each module of the library, with its texts."""
    for topic, text in _topics():
        yield topic, [text]
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if LEFT_OUT.isdisjoint(name.parts):
            yield str(name), _docstrings(path)


def _docstrings(path: Path) -> list[str]:
    """Returns the docstrings of a module, its classes and its functions; nothing of it is imported."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, documented))
    return [text for text in texts if text]


def _prose(text: str) -> Iterator[str]:
    """Yields the paragraphs that are whole sentences, each in one line."""
    for paragraph in PARAGRAPH.split(text):
        line = " ".join(paragraph.split())
        if len(line) < SHORTEST_PARAGRAPH or not line[0].isupper() or line[-1] not in ".:" or "::" in line:
            continue
        letters = sum(letter.isalpha() or letter in " ,.;:'-" for letter in line)
        if letters >= LETTERS_SHARE * len(line):
            yield line


def _is_new(paragraph: str, read: set[tuple[str, ...]]) -> bool:
    """Returns whether no SHINGLE_WORDS words in a row of a paragraph are in `read`, and adds them to it."""
    words = re.findall(r"\w+", paragraph.lower())
    shingles = {tuple(words[start : start + SHINGLE_WORDS]) for start in range(len(words) - SHINGLE_WORDS + 1)}
    is_new = read.isdisjoint(shingles)
    read |= shingles
    return is_new


def phrases(text: str) -> Iterator[str]:
    """Yields the words of a text in small letters, a few at a time; no sign stands between the words of a phrase.

    >>> list(phrases("The parser returns a list, and the name of the file."))
    ['the parser', 'returns a list', 'and the name of the', 'file']
    >>> list(phrases("Internationalization is a long word."))
    ['internationalization', 'is a long word']
    """
    limits = itertools.cycle(PHRASE_LETTERS)
    for match in WORDS.finditer(text.lower()):
        phrase = ""
        limit = next(limits)
        for word in match[0].split():
            if len(phrase) + 1 + len(word) > limit:
                if phrase:  # empty before a first word that is too long
                    yield phrase
                phrase = word
                limit = next(limits)
            else:
                phrase = f"{phrase} {word}".strip()
        yield phrase


@preprocessor
def without_spaces(dataset: Dataset) -> Dataset:
    """Returns the phrases of each document as pairs: without their spaces, and as they stand."""

    def pairs(example: Mapping[str, bytes], number: int) -> list[dict[str, bytes]]:
        del number
        long_enough = [phrase for phrase in phrases(example["text"].decode()) if len(phrase.split(" ")) >= LEAST_WORDS]
        return [{"inputs": phrase.replace(" ", "").encode(), "targets": phrase.encode()} for phrase in long_enough]

    return dataset.flat_map(pairs, {"inputs": TEXT, "targets": TEXT})


FEATURES = dict.fromkeys(("inputs", "targets"), Feature(VOCABULARY))

TaskRegistry.add(
    "demo_span_corruption",
    source=SOURCE,
    preprocessors=[tokenize_documents, span_corruption],
    output_features=FEATURES,
)

TaskRegistry.add(
    "demo_spaces",
    source=SOURCE,
    preprocessors=[without_spaces, *SUPERVISED],
    output_features=dict.fromkeys(("inputs", "targets"), Feature(ByteVocabulary(extra_ids=0))),
    metric_fns=[text_metrics.exact_match],
)

if __name__ == "__main__":
    print(f"{prose_corpus(sys.argv[1]):,} documents of Python's own documentation (PSF licence)")
